package account

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
)

// Hash returns hashed_fxa_uid: a name of the account for metrics, which cannot be
// turned back without the secret. It has 32 hex digits.
func Hash(secret, accountID string) string { return hash(secret, accountID) }

// HashDevice returns hashed_device_id for what Hash returned. Clients do not tell
// their device, so an account has one.
func HashDevice(secret, hashedAccount string) string { return hash(secret, hashedAccount+"none") }

func hash(secret, text string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(text))
	return hex.EncodeToString(mac.Sum(nil))[:32]
}
