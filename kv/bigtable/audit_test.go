package bigtable

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
)

// audit watches all compare-and-sets that a server carries out, from all engines on
// it, and wants the invariants of the protocol to hold for each row:
//
//   - a state cell never has a value that it had before,
//   - a locked row is unlocked before it is locked again, and a lock's bytes never
//     change,
//   - versions rise,
//   - a transaction's status goes from none to P or A, from P to C or A, and
//     nowhere from there but to the same with its mark.
type audit struct {
	tb testing.TB

	mu   sync.Mutex
	rows map[string]*audited
}

type audited struct {
	mu   sync.Mutex
	last []byte
	seen map[string]bool
}

func newAudit(tb testing.TB) *audit { return &audit{tb: tb, rows: map[string]*audited{}} }

func (a *audit) row(table string, key []byte) *audited {
	a.mu.Lock()
	defer a.mu.Unlock()
	id := table + "\x00" + string(key)
	r := a.rows[id]
	if r == nil {
		r = &audited{seen: map[string]bool{}}
		a.rows[id] = r
	}
	return r
}

func (a *audit) call(ctx context.Context, req any, handler grpc.UnaryHandler) (any, error) {
	r, ok := req.(*bigtablepb.CheckAndMutateRowRequest)
	if !ok {
		return handler(ctx, req)
	}
	row := a.row(r.TableName, r.RowKey)
	row.mu.Lock() // so that the order seen here is the order in which they happen
	defer row.mu.Unlock()
	res, err := handler(ctx, req)
	if err != nil {
		return res, err
	}
	applied := r.FalseMutations
	if res.(*bigtablepb.CheckAndMutateRowResponse).PredicateMatched {
		applied = r.TrueMutations
	}
	for _, m := range applied {
		if m.GetDeleteFromRow() != nil {
			row.last = nil
		}
		set := m.GetSetCell()
		switch {
		case set == nil:
		case set.FamilyName == "m":
			a.state(r, row, set.Value)
		case set.FamilyName == "t" && string(set.ColumnQualifier) == "s" && !strings.HasPrefix(string(r.RowKey), leaseKey) && !strings.HasPrefix(string(r.RowKey), probeKey):
			a.status(r, row, set.Value)
		}
	}
	return res, err
}

func (a *audit) state(r *bigtablepb.CheckAndMutateRowRequest, row *audited, raw []byte) {
	raw = bytes.Clone(raw)
	now, err := parseState(raw)
	if err != nil {
		a.tb.Errorf("row %q: %v", r.RowKey, err)
		return
	}
	before, _ := parseState(row.last)
	bad := func(what string) {
		a.tb.Errorf("row %q of %s: %s: %x after %x", r.RowKey, r.TableName, what, raw[:min(len(raw), headerSize)], row.last[:min(len(row.last), headerSize)])
	}
	if row.seen[string(raw[:min(len(raw), headerSize)])] {
		bad("a state that it had before")
	}
	row.seen[string(raw[:min(len(raw), headerSize)])] = true
	switch {
	case before.locked && now.locked:
		bad("locked while it is locked")
	case now.locked && before.raw != nil && (now.version != before.version || now.flag != before.flag || now.touch != before.touch):
		bad("the lock does not keep the state before it")
	case !now.locked && before.raw != nil && now.version != before.version && now.version.p <= before.version.p:
		bad("the version does not rise")
	case !now.locked && before.raw != nil && now.version == before.version && (now.flag != before.flag || now.touch != before.touch+1):
		bad("changed without a new version")
	}
	row.last = raw
}

func (a *audit) status(r *bigtablepb.CheckAndMutateRowRequest, row *audited, raw []byte) {
	last := string(row.last)
	step := fmt.Sprintf("%.1s%.1s", last, raw)
	legal := step == "P" || step == "A" || step == "PC" || step == "PA" || last != "P" && string(raw) == last+"F"
	if !legal {
		a.tb.Errorf("status of transaction %x: %x after %x", r.RowKey, raw, row.last)
	}
	row.last = bytes.Clone(raw)
}
