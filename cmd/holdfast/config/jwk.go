package config

import "encoding/base64"

// Given reports whether the key is configured.
func (k JWK) Given() bool { return k.Kty != "" }

func (t *TokenServer) validateKeys(m *mistakes) {
	t.PrimaryJWK.validate(m, "tokenserver.primary_jwk.")
	t.SecondaryJWK.validate(m, "tokenserver.secondary_jwk.")
	if t.Enabled && t.Mode == ModeOffline && !t.PrimaryJWK.Given() && !t.SecondaryJWK.Given() {
		m.add("tokenserver.primary_jwk.kty", "is empty; offline mode believes only tokens signed by a key that is given here")
	}
	if t.SecondaryJWK.Given() && !t.PrimaryJWK.Given() {
		m.add("tokenserver.primary_jwk.kty", "is empty, but there is a secondary_jwk; give the first key first")
	}
}

func (k JWK) validate(m *mistakes, prefix string) {
	if !k.Given() {
		if k != (JWK{}) {
			m.add(prefix+"kty", "is empty, but other fields of the key are set; set it to RSA")
		}
		return
	}
	m.oneOf(prefix+"kty", k.Kty, "RSA")
	m.oneOf(prefix+"alg", k.Alg, "RS256", "")
	m.oneOf(prefix+"use", k.Use, "sig", "")
	for _, f := range []struct{ name, value string }{{"n", k.N}, {"e", k.E}} {
		if b, err := base64.RawURLEncoding.DecodeString(f.value); err != nil || len(b) == 0 {
			m.add(prefix+f.name, "is not a number in unpadded base64url")
		}
	}
}
