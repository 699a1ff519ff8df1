package tokenserver

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/api/sync15/hawk"
)

// grant is the body of a successful response.
type grant struct {
	ID           string `json:"id"`
	Key          string `json:"key"`
	UID          uint64 `json:"uid"`
	APIEndpoint  string `json:"api_endpoint"`
	Duration     int64  `json:"duration"`
	HashedFxAUID string `json:"hashed_fxa_uid"`
	HashAlg      string `json:"hashalg"`
	NodeType     string `json:"node_type"`
}

// token answers GET /1.0/{application}/{version}. The order of the checks is part
// of the protocol: who has no valid token does not learn which applications there
// are.
func (s *Server) token(r *http.Request, application, version string) (any, error) {
	id, claims, err := s.identify(r)
	if err != nil {
		return nil, err
	}
	switch {
	case application != "sync":
		return nil, unsupported("application", "Unsupported application")
	case version != "1.5":
		return nil, unsupported(strings.ToValidUTF8(version, "\uFFFD"), "Unsupported application version")
	}
	duration, err := s.duration(r.URL.RawQuery)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.opts.StoreTimeout)
	defer cancel()
	a, err := s.opts.Store.Assign(ctx, claims)
	if err != nil {
		return nil, err
	}
	return s.grant(id, a, duration)
}

// duration reads how long the credential shall live. What it cannot use it
// ignores, but not a query string that is broken as a whole.
func (s *Server) duration(query string) (int64, error) {
	most := int64(s.opts.TokenDuration / time.Second)
	values, err := url.ParseQuery(query)
	if err != nil {
		return 0, badQuery()
	}
	if n, err := strconv.ParseUint(values.Get("duration"), 10, 63); err == nil && int64(n) <= most {
		return int64(n), nil
	}
	return most, nil
}

// bearer takes the token out of the Authorization header.
func bearer(h http.Header) (string, error) {
	header := h.Get("Authorization")
	scheme, token, ok := strings.Cut(header, " ")
	switch {
	case !ok || !isPrintable(header):
		return "", unauthorized("error")
	case !strings.EqualFold(scheme, "Bearer"):
		return "", badScheme()
	}
	return token, nil
}

func isPrintable(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] < ' ' && s[i] != '\t' || s[i] > '~' {
			return false
		}
	}
	return true
}

// identify finds out who asks, and for which keys.
func (s *Server) identify(r *http.Request) (string, Claims, error) {
	token, err := bearer(r.Header)
	if err != nil {
		return "", Claims{}, err
	}
	began := s.opts.Clock.Now()
	id, err := s.opts.Accounts.Verify(r.Context(), token)
	s.metrics.verification.Observe(s.opts.Clock.Now().Sub(began), "OAuth")
	if err != nil {
		return "", Claims{}, err
	}
	k, err := parseKeyID(r.Header)
	if err != nil {
		return "", Claims{}, err
	}
	return id.AccountID, Claims{
		Email:         s.email(id.AccountID),
		ClientState:   k.clientState,
		Generation:    id.Generation,
		KeysChangedAt: k.keysChangedAt,
	}, nil
}

// grant makes the credential for an account's storage.
func (s *Server) grant(accountID string, a Assignment, duration int64) (any, error) {
	began := s.opts.Clock.Now()
	salt, err := hawk.NewSalt(s.opts.Random)
	if err != nil {
		return nil, err
	}
	kid, err := keyIDOf(&a.User)
	if err != nil {
		return nil, err
	}
	hashedID, hashedDevice := s.hashes(accountID)
	token, key, err := s.opts.Keyring.Mint(hawk.Claims{
		Node: a.Node, UID: a.User.UID, FxAUID: accountID, FxAKID: kid,
		HashedFxAUID: hashedID, HashedDeviceID: hashedDevice,
		Expires: began.Unix() + duration, TokenserverOrigin: "rust", Salt: salt,
	})
	if err != nil {
		return nil, err
	}
	s.metrics.creation.Observe(s.opts.Clock.Now().Sub(began))
	return grant{
		ID: token, Key: key, UID: a.User.UID,
		APIEndpoint: a.Node + "/1.5/" + strconv.FormatUint(a.User.UID, 10),
		Duration:    duration, HashedFxAUID: hashedID, HashAlg: "sha256", NodeType: s.opts.NodeType,
	}, nil
}
