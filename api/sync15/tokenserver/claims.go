package tokenserver

// Claims is what a request says about its account. The numbers are nil if the
// request does not say; a 0 in a request counts as not said.
type Claims struct {
	Email       string
	ClientState string // hex
	Generation  *int64
	// KeysChangedAt is what the client says, not the account service.
	KeysChangedAt *int64
}

// ClaimsError reports claims that contradict what is known of the account.
type ClaimsError struct {
	// Status is the protocol's name for the claim that is wrong:
	// invalid-generation, invalid-keysChangedAt or invalid-client-state.
	Status string
	// Reason says what is wrong with a client state; empty for other claims.
	Reason string
}

func (e *ClaimsError) Error() string {
	if e.Reason == "" {
		return e.Status
	}
	return e.Status + ": " + e.Reason
}

const (
	invalidGeneration    = "invalid-generation"
	invalidKeysChangedAt = "invalid-keysChangedAt"
	invalidClientState   = "invalid-client-state"
)

// less compares two claims; with one that is not there no comparison holds.
func less(a, b *int64) bool { return a != nil && b != nil && *a < *b }

// check compares claims with the current user and the client states that the
// account had before. All numbers only ever rise, a set of keys never comes back,
// and new keys come with a new generation and a new keysChangedAt.
func (c *Claims) check(u *User, stale func(clientState string) bool) error {
	newState := c.ClientState != u.ClientState
	switch {
	// Not just if it differs from the generation stored: that may have been seen
	// by a server that did not look at keysChangedAt yet.
	case less(u.KeysChangedAt, c.KeysChangedAt) && less(c.Generation, c.KeysChangedAt):
		return &ClaimsError{Status: invalidKeysChangedAt}
	case u.ClientState != "" && c.ClientState == "":
		return &ClaimsError{Status: invalidClientState, Reason: "empty string"}
	case newState && stale(c.ClientState):
		return &ClaimsError{Status: invalidClientState, Reason: "stale value"}
	case newState && c.Generation != nil && *c.Generation <= u.Generation:
		return &ClaimsError{Status: invalidClientState, Reason: "new value with no generation change"}
	case newState && c.KeysChangedAt != nil && u.KeysChangedAt != nil && *c.KeysChangedAt <= *u.KeysChangedAt:
		return &ClaimsError{Status: invalidClientState, Reason: "new value with no keys_changed_at change"}
	case c.Generation != nil && u.Generation > *c.Generation:
		return &ClaimsError{Status: invalidGeneration}
	case less(c.KeysChangedAt, u.KeysChangedAt):
		return &ClaimsError{Status: invalidKeysChangedAt}
	case c.KeysChangedAt == nil && u.KeysChangedAt != nil && *u.KeysChangedAt != 0:
		return &ClaimsError{Status: invalidKeysChangedAt}
	}
	return nil
}

// update returns the user's numbers as they are after claims that passed check. A
// client that tells no generation moves it by new keys.
func (c *Claims) update(u *User) (generation int64, keysChangedAt *int64) {
	generation, keysChangedAt = u.Generation, u.KeysChangedAt
	if c.KeysChangedAt != nil {
		keysChangedAt = c.KeysChangedAt
	}
	switch {
	case c.Generation != nil:
		generation = *c.Generation
	case c.KeysChangedAt != nil && *c.KeysChangedAt > u.Generation &&
		(u.KeysChangedAt == nil || *c.KeysChangedAt > *u.KeysChangedAt):
		generation = *c.KeysChangedAt
	}
	return generation, keysChangedAt
}
