package tokenserver

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/go-json-experiment/json"

	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/key"
)

const (
	servicesSpace = "token_services"
	usersSpace    = "token_users"
	uidsSpace     = "token_uids"
)

// The one service there is.
const (
	serviceName    = "sync-1.5"
	serviceID      = 1
	servicePattern = "{node}/1.5/{uid}"
)

const (
	// maxUID is the largest number that the ten digits of a storage URL hold.
	maxUID = 9_999_999_999
	// maxUsers bounds the row of an account. Clients choose their client state, so
	// a broken one could add users without end.
	maxUsers = 1000
	// retired is the generation of users whose account is gone. No request can
	// have a larger one.
	retired = math.MaxInt64
)

// User is one storage that an account has or had.
type User struct {
	UID uint64 `json:"uid"`
	// Generation rises with every change of the account's credentials. 0: never
	// told. The largest int64: the account is gone.
	Generation int64 `json:"generation"`
	// ClientState fingerprints the account's keys, in hex.
	ClientState string `json:"client_state"`
	// CreatedAt is in milliseconds since the epoch.
	CreatedAt int64 `json:"created_at"`
	// ReplacedAt is when another user took this one's place, in milliseconds
	// since the epoch; nil for the current user.
	ReplacedAt *int64 `json:"replaced_at"`
	NodeID     int64  `json:"nodeid"`
	// KeysChangedAt rises with every change of the account's keys. nil: never
	// told.
	KeysChangedAt *int64 `json:"keys_changed_at"`
}

// Account is what is known of one account.
type Account struct {
	Service string `json:"service"`
	Email   string `json:"email"`
	// Users has the current user first, then the older ones from young to old.
	Users []User `json:"users"`
}

// userList is the value of a row in token_users.
type userList struct {
	Users []User `json:"users"`
}

// sort puts the current user first.
func (l *userList) sort() {
	slices.SortFunc(l.Users, func(a, b User) int {
		return cmp.Or(cmp.Compare(b.Generation, a.Generation), cmp.Compare(b.CreatedAt, a.CreatedAt), cmp.Compare(b.UID, a.UID))
	})
}

// service is the value of a row in token_services.
type service struct {
	ID         int64  `json:"id"`
	Pattern    string `json:"pattern"`
	Nodes      []Node `json:"nodes"` // in the order of their ids
	LastNodeID int64  `json:"last_node_id"`
	// OwnNodeID is the node that stands for the server itself; 0: there is none.
	OwnNodeID int64 `json:"own_node_id,omitempty"`
}

// uidOwner is the value of a row in token_uids.
type uidOwner struct {
	Service int64  `json:"service"`
	Email   string `json:"email"`
}

// lastUID is the value of the row 0 in token_uids.
type lastUID struct {
	UID uint64 `json:"uid"`
}

func serviceRef() kv.Ref {
	return kv.Ref{Space: servicesSpace, Key: key.AppendString(nil, serviceName)}
}

func userRef(email string) kv.Ref {
	return kv.Ref{Space: usersSpace, Key: key.AppendString(usersOfService(), email)}
}

func usersOfService() []byte { return key.AppendUint(nil, serviceID) }

func uidRef(uid uint64) kv.Ref {
	return kv.Ref{Space: uidsSpace, Key: key.AppendUint(nil, uid)}
}

// decode reads the value of a row into v, which stays as it is if there is no row.
func decode(row kv.Row, ref kv.Ref, v any) error {
	if !row.Exists() {
		return nil
	}
	if err := json.Unmarshal(row.Value, v); err != nil {
		// The cause may quote the value.
		return fmt.Errorf("tokenserver: row %q of %s: %w", ref.Key, ref.Space, kv.ErrCorrupt)
	}
	return nil
}

func put(tx *kv.Tx, ref kv.Ref, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("tokenserver: encode row %q of %s: %w", ref.Key, ref.Space, err)
	}
	tx.Put(kv.Write{Space: ref.Space, Key: ref.Key, Value: b})
	return nil
}

// load reads the value of a row in a transaction and reports whether it exists.
func load(tx *kv.Tx, ref kv.Ref, v any) (bool, error) {
	row, err := tx.Get(ref.Space, ref.Key)
	if err != nil {
		return false, err
	}
	return row.Exists(), decode(row, ref, v)
}
