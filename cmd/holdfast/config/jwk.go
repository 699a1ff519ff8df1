package config

import (
	"encoding/base64"
	"encoding/json"
	"fmt"

	"github.com/holdfast-dev/holdfast/api/sync15/oauth"
)

func (k JWK) given() bool { return k.Kty != "" }

// Keys returns the configured keys of the account server as JWK texts: none, one
// or two.
func (t *TokenServer) Keys() ([]string, error) {
	var texts []string
	for _, k := range []JWK{t.PrimaryJWK, t.SecondaryJWK} {
		if !k.given() {
			continue
		}
		text, err := k.text()
		if err != nil {
			return nil, err
		}
		texts = append(texts, text)
	}
	return texts, nil
}

func (k JWK) text() (string, error) {
	b, err := json.Marshal(struct {
		Kty string `json:"kty"`
		Alg string `json:"alg,omitempty"`
		Kid string `json:"kid,omitempty"`
		Use string `json:"use,omitempty"`
		N   string `json:"n"`
		E   string `json:"e"`
	}{k.Kty, k.Alg, k.Kid, k.Use, k.N, k.E})
	if err != nil {
		return "", fmt.Errorf("write a JWK: %w", err)
	}
	return string(b), nil
}

func (t *TokenServer) validateKeys(m *mistakes) {
	t.PrimaryJWK.validate(m, "tokenserver.primary_jwk.")
	t.SecondaryJWK.validate(m, "tokenserver.secondary_jwk.")
	if t.SecondaryJWK.given() && !t.PrimaryJWK.given() {
		m.add("tokenserver.primary_jwk.kty", "is empty, but there is a secondary_jwk; give the first key first")
	}
}

func (k JWK) validate(m *mistakes, prefix string) {
	if !k.given() {
		if k != (JWK{}) {
			m.add(prefix+"kty", "is empty, but other fields of the key are set; set it to RSA")
		}
		return
	}
	before := len(m.errs)
	m.oneOf(prefix+"kty", k.Kty, "RSA")
	m.oneOf(prefix+"alg", k.Alg, "RS256", "")
	m.oneOf(prefix+"use", k.Use, "sig", "")
	for _, f := range []struct{ name, value string }{{"n", k.N}, {"e", k.E}} {
		if b, err := base64.RawURLEncoding.DecodeString(f.value); err != nil || len(b) == 0 {
			m.add(prefix+f.name, "is not a number in unpadded base64url")
		}
	}
	if len(m.errs) > before {
		return
	}
	text, err := k.text()
	if err == nil {
		_, err = oauth.ParseKey(text)
	}
	if err != nil {
		m.add(prefix+"n", "makes no key: %w", err)
	}
}
