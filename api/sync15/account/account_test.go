package account

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func headers(keyID string, clientState ...string) http.Header {
	h := http.Header{}
	h.Set("X-KeyID", keyID)
	for _, s := range clientState {
		h.Add("X-Client-State", s)
	}
	return h
}

func ptr(n int64) *int64 { return &n }

func TestParseKeyID(t *testing.T) {
	for name, tt := range map[string]struct {
		header http.Header
		want   KeyID
	}{
		"plain":            {headers("1234-qqo"), KeyID{ptr(1234), "aaaa"}},
		"with state":       {headers("1234-qqo", "aaaa"), KeyID{ptr(1234), "aaaa"}},
		"0 is absent":      {headers("0-qqo"), KeyID{nil, "aaaa"}},
		"padded number":    {headers("0000000001234-u7s"), KeyID{ptr(1234), "bbbb"}},
		"empty state":      {headers("1234-"), KeyID{ptr(1234), ""}},
		"minus in state":   {headers("1-" + "--__"), KeyID{ptr(1), "fbefff"}},
		"16 bytes":         {headers("1-AAECAwQFBgcICQoLDA0ODw", "000102030405060708090a0b0c0d0e0f"), KeyID{ptr(1), "000102030405060708090a0b0c0d0e0f"}},
		"two key ids":      {http.Header{"X-Keyid": {"1-qqo", "x"}}, KeyID{ptr(1), "aaaa"}},
		"the largest time": {headers("9223372036854775807-qqo"), KeyID{ptr(9223372036854775807), "aaaa"}},
	} {
		got, err := ParseKeyID(tt.header)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestParseKeyIDTellsTheFirstFault(t *testing.T) {
	for name, tt := range map[string]struct {
		header http.Header
		want   error
	}{
		"missing":             {http.Header{"X-Client-State": {"!"}}, ErrKeyIDMissing},
		"not ASCII":           {headers("1234-é", "!"), ErrKeyIDNotASCII},
		"control character":   {headers("1234-\x01"), ErrKeyIDNotASCII},
		"no minus":            {headers("1234", "!"), ErrKeyIDMalformed},
		"empty":               {headers(""), ErrKeyIDMalformed},
		"bad base64":          {headers("1234-state!", "!"), ErrKeyIDMalformed},
		"padded base64":       {headers("1234-qqo="), ErrKeyIDMalformed},
		"standard base64":     {headers("1234-++//"), ErrKeyIDMalformed},
		"loose bits":          {headers("1234-qqp"), ErrKeyIDMalformed},
		"long state":          {headers("1-" + strings.Repeat("AAAA", 22)), ErrKeyIDMalformed},
		"state before time":   {headers("x-qqo", "state!"), ErrClientStateInvalid},
		"state empty":         {headers("1-qqo", ""), ErrClientStateInvalid},
		"state long":          {headers("1-qqo", strings.Repeat("a", 33)), ErrClientStateInvalid},
		"differs":             {headers("x-qqo", "aaab"), ErrClientStateMismatch},
		"differs in case":     {headers("1-qqo", "AAAA"), ErrClientStateMismatch},
		"bad number":          {headers("x-qqo", "aaaa"), ErrKeyIDMalformed},
		"no number":           {headers("-qqo"), ErrKeyIDMalformed},
		"negative number":     {headers("-5-qqo"), ErrKeyIDMalformed},
		"fraction":            {headers("1.5-qqo"), ErrKeyIDMalformed},
		"number out of range": {headers("9223372036854775808-qqo"), ErrKeyIDMalformed},
	} {
		if got, err := ParseKeyID(tt.header); !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v, %v, want %v", name, got, err, tt.want)
		}
	}
}

func TestFormatKeyID(t *testing.T) {
	for _, tt := range []struct {
		changed     int64
		state, want string
	}{
		{1234, "aaaa", "0000000001234-qqo"}, {2345, "bbbb", "0000000002345-u7s"}, {0, "", "0000000000000-"},
		{1234, "000102030405060708090a0b0c0d0e0f", "0000000001234-AAECAwQFBgcICQoLDA0ODw"}, {12345678901234, "ff", "12345678901234-_w"},
	} {
		if got, err := FormatKeyID(tt.changed, tt.state); err != nil || got != tt.want {
			t.Errorf("%d and %s: got %s, %v, want %s", tt.changed, tt.state, got, err, tt.want)
		}
	}
	if got, err := FormatKeyID(1, "xyz"); err == nil {
		t.Errorf("a state that is not hex became %s", got)
	}
}

func TestHashVectors(t *testing.T) {
	account := Hash("metrics-secret", "0123456789abcdef0123456789abcdef")
	if want := "e25abf4858e35851a75ff5ef984dcfd2"; account != want {
		t.Errorf("account: got %s, want %s", account, want)
	}
	if got, want := HashDevice("metrics-secret", account), "118066ed764b09c067de131d9abefeb7"; got != want {
		t.Errorf("device: got %s, want %s", got, want)
	}
}

func FuzzParseKeyID(f *testing.F) {
	f.Add("1234-qqo", "aaaa", true)
	f.Add("0-", "", false)
	f.Fuzz(func(t *testing.T, keyID, state string, hasState bool) {
		h := http.Header{"X-Keyid": {keyID}}
		if hasState {
			h["X-Client-State"] = []string{state}
		}
		id, err := ParseKeyID(h)
		if err != nil {
			return
		}
		if hasState && id.ClientState != state {
			t.Errorf("%q and %q were taken for equal", keyID, state)
		}
		var changed int64
		if id.KeysChangedAt != nil {
			changed = *id.KeysChangedAt
		}
		text, err := FormatKeyID(changed, id.ClientState)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseKeyID(http.Header{"X-Keyid": {text}})
		if err != nil || cmp.Diff(id, again) != "" {
			t.Errorf("%q was formatted as %q, which reads as %v, %v", keyID, text, again, err)
		}
	})
}
