package storage

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/api/sync15/bso"
	"github.com/holdfast-dev/holdfast/changes"
	"github.com/holdfast-dev/holdfast/kv"
)

func TestChangeRecordsNameTheAccountAndTheRecord(t *testing.T) {
	for name, c := range map[string]struct {
		user        User
		account, id string
	}{
		"by account": {User{UID: 7, FxaUID: "account", FxaKID: "key"}, "account", "key"},
		"by number":  {User{UID: 7}, "uid-7", ""},
	} {
		at := place{c.user.id(), 6, 3}
		shared := []changes.Field{{Name: "fxa_uid", Value: c.account}, {Name: "fxa_kid", Value: c.id}, {Name: "collection_id", Value: "6"}}
		rec := Record{Record: bso.Record{ID: "a/b", SortIndex: 5, HasSortIndex: true}, Link: "gs://b/o", Size: 9}
		got, err := ChangeTables()[SpaceRecords].Keys(at.recordKey("a/b"), rec.encode(c.user))
		want := append(shared[:3:3], changes.Field{Name: "bso_id", Value: "a/b"})
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: record: %v (-want +got)\n%s", name, err, diff)
		}
		patch := Patch{Update: bso.Update{ID: "x", HasPayload: true, TTL: 3, HasTTL: true}, Link: "gs://b/o", Size: 9}
		got, err = ChangeTables()[SpaceStaged].Keys(at.stagedKey("batch", "x"), patch.encodeStaged(c.user))
		want = append(shared[:3:3], changes.Field{Name: "batch_id", Value: "batch"}, changes.Field{Name: "batch_bso_id", Value: "x"})
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: staged: %v (-want +got)\n%s", name, err, diff)
		}
		space, permanent, err := ChangeTables()[SpaceStaged].Permanent(at.stagedKey("batch", "x"))
		if err != nil || space != SpaceRecords || string(permanent) != string(at.recordKey("x")) {
			t.Errorf("%s: permanent row %s/%q, %v", name, space, permanent, err)
		}
	}
}

func TestStoragesOfDifferentUsersHaveDifferentKeys(t *testing.T) {
	seen := map[storageID]User{}
	for _, u := range []User{
		{UID: 7}, {UID: 8}, {UID: 7, FxaUID: "a", FxaKID: "b"}, {UID: 7, FxaUID: "ab", FxaKID: ""},
		{UID: 8, FxaUID: "a", FxaKID: "c"}, {UID: 7, FxaUID: "a\x00", FxaKID: "b"}, {UID: 7, FxaUID: "a", FxaKID: "\x00b"},
	} {
		if other, ok := seen[u.id()]; ok && !(u.UID == other.UID && !u.byAccount() && !other.byAccount()) {
			t.Errorf("%+v and %+v share a storage", u, other)
		}
		seen[u.id()] = u
	}
	if (User{UID: 1, FxaUID: "a", FxaKID: "b"}).id() != (User{UID: 2, FxaUID: "a", FxaKID: "b"}).id() {
		t.Error("the number counts although the account is known")
	}
}

func TestDamagedRowsAreReportedAsSuch(t *testing.T) {
	u := User{FxaUID: "account", FxaKID: "key"}
	rec := Record{Record: bso.Record{ID: "a"}, Link: "gs://b/o", Size: 9}
	value := rec.encode(u)
	for cut := range len(value) {
		if _, err := decodeRecord("a", rowOf(value[:cut], rec.Link)); err == nil {
			t.Errorf("a record cut at %d of %d was read", cut, len(value))
		}
	}
	h := head{owner: u, last: 5, collections: []collection{{id: 1, life: 1, modified: 5, count: 1, bytes: 300}}}
	value = h.encode()
	for cut := 1; cut < len(value); cut++ {
		got, err := decodeHead(rowOf(value[:cut], ""))
		if err == nil && len(got.collections) > 0 {
			t.Errorf("a head cut at %d of %d was read with its collection", cut, len(value))
		}
	}
}

func rowOf(value []byte, link string) kv.Row { return kv.Row{Value: value, Link: link, Version: 1} }
