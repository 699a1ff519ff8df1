package kvtest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/kv"
)

func rowCases() []suiteCase {
	return []suiteCase{
		{"AbsentRowReadsAsVersionZero", caseAbsent},
		{"RowKeepsAllItsFields", caseFields},
		{"WriteReplacesTheWholeRow", caseReplace},
		{"DeleteRemovesTheRow", caseDelete},
		{"GetKeepsTheOrderOfItsRefs", caseGetOrder},
		{"GetOfManyRowsIsAsGetOfEach", caseGetMany},
		{"EngineKeepsNoBytesOfTheCaller", caseCallerBytes},
		{"RowsOfGetBelongToTheCaller", caseGetBytes},
		{"ValuesOfEverySize", caseValueSizes},
		{"TooLargeWritesNothing", caseTooLarge},
		{"LargestCommit", caseLargestCommit},
		{"InvalidCallsAreRefused", caseInvalid},
	}
}

func caseAbsent(f *fixture) {
	f.space("a")
	f.wantAbsent("a", "no")
	f.write(put("a", "no1", "x"), put("a", "n", "x"))
	f.wantAbsent("a", "no")
	f.wantAbsent("a", "no\x00")
}

func caseFields(f *fixture) {
	f.space("a")
	w := put("a", "k", "value")
	w.Link = "gs://bucket/" + strings.Repeat("l", kv.MaxLinkSize-len("gs://bucket/"))
	w.ExpiresAt = f.clock.Now().Add(time.Hour + 123456*time.Microsecond + 789)
	v := f.write(w)
	want := kv.Row{Key: w.Key, Value: w.Value, Link: w.Link, Version: v, ExpiresAt: w.ExpiresAt.Truncate(time.Microsecond)}
	f.wantRow("a", "k", want)
	if diff := cmp.Diff([]kv.Row{want}, f.scan("a", kv.Range{}), rowOptions()); diff != "" {
		f.Errorf("row in scan (-want +got):\n%s", diff)
	}
}

func caseReplace(f *fixture) {
	f.space("a")
	w := put("a", "k", "long value")
	w.Link, w.ExpiresAt = "gs://b/o", f.clock.Now().Add(time.Hour)
	f.write(w)
	v := f.write(put("a", "k", "new"))
	f.wantRow("a", "k", kv.Row{Value: []byte("new"), Version: v})
	v = f.write(put("a", "k", ""))
	f.wantRow("a", "k", kv.Row{Version: v})
}

func caseDelete(f *fixture) {
	f.space("a")
	f.write(put("a", "k", "x"), put("a", "l", "y"))
	f.write(del("a", "k"), del("a", "never"))
	f.wantAbsent("a", "k")
	f.wantAbsent("a", "never")
	f.wantKeys("a", kv.Range{IncludeExpired: true}, "l")
	f.write(del("a", "k"))
}

func caseGetOrder(f *fixture) {
	f.space("a")
	f.space("b")
	f.write(put("a", "1", "a1"), put("a", "2", "a2"), put("b", "1", "b1"))
	ref := func(space, key string) kv.Ref { return kv.Ref{Space: space, Key: []byte(key)} }
	refs := []kv.Ref{ref("b", "1"), ref("a", "2"), ref("a", "no"), ref("a", "1"), ref("b", "1"), ref("b", "2")}
	rows, err := f.db.Get(f.ctx, refs...)
	f.ok(err)
	var got []string
	for i, row := range rows {
		if !bytes.Equal(row.Key, refs[i].Key) {
			f.Errorf("row %d has key %q, want %q", i, row.Key, refs[i].Key)
		}
		got = append(got, string(row.Value))
	}
	if diff := cmp.Diff([]string{"b1", "a2", "", "a1", "b1", ""}, got); diff != "" {
		f.Errorf("values (-want +got):\n%s", diff)
	}
}

// caseGetMany reads rows of all kinds together, in no order and some of them twice,
// and each on its own. Of what is written first an engine may have made something
// else when it is opened again.
func caseGetMany(f *fixture) {
	const rows = 60
	at := f.clock.Now().Add(time.Hour)
	var refs []kv.Ref
	key := func(i int) []byte { return bytes.Repeat([]byte{byte('a' + i%3)}, 1+i/3) } // some begin with others
	for _, space := range []string{"b", "a"} {
		f.space(space)
		var writes []kv.Write
		for i := range rows {
			w := kv.Write{Space: space, Key: key(i), Value: pattern(i * i * 5)}
			switch i % 5 {
			case 0:
				w.ExpiresAt = at
			case 1:
				w.Link = fmt.Sprint("gs://b/", space, i)
			case 2:
				f.write(w, kv.Write{Space: space, Key: append(key(i), 0)})
				w = kv.Write{Space: space, Key: w.Key, Delete: true}
			case 3:
				continue
			}
			writes = append(writes, w)
			refs = append(refs, kv.Ref{Space: space, Key: append(key(i), 0)})
		}
		f.write(writes[:len(writes)/2]...)
		f.reopen(f.clock)
		f.write(writes[len(writes)/4:]...)
		for i := range rows {
			ref := kv.Ref{Space: space, Key: key(i)}
			stored := ref
			stored.IncludeExpired = true
			refs = append(refs, ref, stored, ref)
		}
	}
	f.clock.Set(at)
	rng := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{2, 3, len(refs)} {
		rng.Shuffle(len(refs), func(i, j int) { refs[i], refs[j] = refs[j], refs[i] })
		got, err := f.db.Get(f.ctx, refs[:n]...)
		f.ok(err)
		for i, ref := range refs[:n] {
			want, err := f.db.Get(f.ctx, ref)
			f.ok(err)
			if diff := cmp.Diff(want[0], got[i], rowOptions()); diff != "" {
				f.Errorf("row of %v among %d (-alone +together):\n%s", ref, n, diff)
			}
		}
	}
}

// spoiled overwrites bytes that were handed over in a call that has returned.
func spoiled(all ...[]byte) {
	for _, b := range all {
		for i := range b {
			b[i] = '!'
		}
	}
}

func caseCallerBytes(f *fixture) {
	f.space("a", kv.SpaceOptions{FeedShards: 1, FeedRetention: time.Hour})
	key, value, feed := []byte("key"), []byte("value"), []byte("entry")
	t := &kv.Txn{
		Checks: []kv.Check{{Space: "a", Key: key}},
		Writes: []kv.Write{{Space: "a", Key: key, Value: value, Feed: feed}},
	}
	v, err := f.db.Commit(f.ctx, t)
	f.ok(err)
	spoiled(key, value, feed)
	t.Writes[0], t.Checks[0] = kv.Write{}, kv.Check{}
	f.wantRow("a", "key", kv.Row{Value: []byte("value"), Version: v})
	f.wantKeys("a", kv.Range{}, "key")
	entries, err := f.db.ReadFeed(f.ctx, "a", 0, "", 10)
	f.ok(err)
	if len(entries) != 1 || string(entries[0].Key) != "key" || string(entries[0].Data) != "entry" {
		f.Errorf("feed = %v, want the entry of key", entries)
	}

	key = []byte("key")
	_, err = f.db.Commit(f.ctx, &kv.Txn{Checks: []kv.Check{{Space: "a", Key: key}}, Writes: []kv.Write{put("a", "x", "")}})
	spoiled(key)
	if got := err.Error(); !kv.IsConflict(err) || strings.Contains(got, "!!!") {
		f.Errorf("error = %v, want a conflict that keeps no bytes of the call", err)
	}
	key = []byte("key")
	rows, err := f.db.Get(f.ctx, kv.Ref{Space: "a", Key: key}, kv.Ref{Space: "a", Key: []byte("no")})
	f.ok(err)
	spoiled(key)
	if string(rows[0].Key) != "key" {
		f.Errorf("key of the row = %q after the caller reused the bytes of the ref", rows[0].Key)
	}
	start, end := []byte("k"), []byte("l")
	f.ok(f.db.Scan(f.ctx, "a", kv.Range{Start: start, End: end}, func(kv.Row) bool { return true }))
	spoiled(start, end)
	f.wantKeys("a", kv.Range{}, "key")
}

func caseGetBytes(f *fixture) {
	f.space("a", kv.SpaceOptions{FeedShards: 1, FeedRetention: time.Hour})
	w1, w2 := put("a", "k1", "value1"), put("a", "k2", "value2")
	w1.Feed, w2.Feed = []byte("f1"), []byte("f2")
	f.write(w1, w2)
	refs := []kv.Ref{{Space: "a", Key: []byte("k1")}, {Space: "a", Key: []byte("k2")}}
	for range 2 {
		rows, err := f.db.Get(f.ctx, refs...)
		f.ok(err)
		// Growing one slice must not reach into another either.
		_, _ = append(rows[0].Key, "????????"...), append(rows[0].Value, "????????"...)
		if got := fmt.Sprintf("%s %s %s %s", rows[0].Key, rows[0].Value, rows[1].Key, rows[1].Value); got != "k1 value1 k2 value2" {
			f.Fatalf("rows = %s", got)
		}
		spoiled(rows[0].Key, rows[0].Value, rows[1].Key, rows[1].Value)
		entries, err := f.db.ReadFeed(f.ctx, "a", 0, "", 10)
		f.ok(err)
		if len(entries) != 2 || string(entries[0].Key) != "k1" || string(entries[0].Data) != "f1" {
			f.Fatalf("feed = %v", entries)
		}
		spoiled(entries[0].Key, entries[0].Data)
	}
	if string(refs[0].Key) != "k1" {
		f.Errorf("the row shares the bytes of the ref")
	}
	f.wantKeys("a", kv.Range{}, "k1", "k2")
}

// pattern returns n bytes that differ from block to block, so that a value cut or
// put together wrongly shows.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i ^ i>>8 ^ i>>16)
	}
	return b
}

func caseValueSizes(f *fixture) {
	f.space("a")
	const block = 64 << 10
	for _, n := range []int{0, 1, block - 1, block, block + 1, 1 << 20, kv.MaxValueSize} {
		if n+1 > f.harness.Limits.CommitBytes {
			continue
		}
		w := kv.Write{Space: "a", Key: []byte("k"), Value: pattern(n)}
		f.write(w)
		if got := f.get("a", "k").Value; !bytes.Equal(got, w.Value) {
			f.Errorf("value of %d bytes came back with %d or changed", n, len(got))
		}
		if rows := f.scan("a", kv.Range{}); len(rows) != 1 || !bytes.Equal(rows[0].Value, w.Value) {
			f.Errorf("value of %d bytes came back changed from a scan", n)
		}
	}
}

func caseTooLarge(f *fixture) {
	f.space("a", kv.SpaceOptions{Links: true, FeedShards: 1, FeedRetention: time.Hour})
	large := func(change func(w *kv.Write)) {
		f.Helper()
		w := put("a", "k", "x")
		change(&w)
		_, err := f.db.Commit(f.ctx, &kv.Txn{Writes: []kv.Write{put("a", "other", "x"), w}})
		f.wantErr(err, kv.ErrTooLarge)
	}
	large(func(w *kv.Write) { w.Value = make([]byte, kv.MaxValueSize+1) })
	large(func(w *kv.Write) { w.Key = make([]byte, kv.MaxKeySize+1) })
	large(func(w *kv.Write) { w.Link = strings.Repeat("l", kv.MaxLinkSize+1) })
	large(func(w *kv.Write) { w.Feed = make([]byte, kv.MaxFeedEntrySize+1) })
	f.wantKeys("a", kv.Range{IncludeExpired: true})

	many := make([]kv.Write, f.harness.Limits.CommitRows+1)
	for i := range many {
		many[i] = put("a", fmt.Sprint(i), "")
	}
	_, err := f.db.Commit(f.ctx, &kv.Txn{Writes: many})
	f.wantErr(err, kv.ErrTooLarge)
	f.wantKeys("a", kv.Range{IncludeExpired: true})
}

func caseLargestCommit(f *fixture) {
	f.space("a")
	limits := f.harness.Limits
	rows := make([]kv.Write, limits.CommitRows)
	for i := range rows {
		rows[i] = put("a", fmt.Sprintf("%08d", i), "")
	}
	v := f.write(rows...)
	got := f.scan("a", kv.Range{})
	if len(got) != len(rows) || got[0].Version != v || got[len(got)-1].Version != v {
		f.Fatalf("%d rows after a commit of %d", len(got), len(rows))
	}

	var heavy []kv.Write
	left := limits.CommitBytes
	for i := 0; left > 0 && len(heavy) < limits.CommitRows; i++ {
		w := put("a", fmt.Sprintf("heavy%03d", i), "")
		if left < 2*len(w.Key) {
			heavy[len(heavy)-1].Value = heavy[len(heavy)-1].Value[left:]
			continue
		}
		w.Value = make([]byte, min(left-len(w.Key), kv.MaxValueSize))
		heavy = append(heavy, w)
		left -= len(w.Key) + len(w.Value)
	}
	f.write(heavy...)
	for _, w := range heavy {
		if got := len(f.get("a", string(w.Key)).Value); got != len(w.Value) {
			f.Errorf("value of %s has %d bytes, want %d", w.Key, got, len(w.Value))
		}
	}
}

func caseInvalid(f *fixture) {
	f.space("a")
	f.space("plain", kv.SpaceOptions{})
	refuse := func(checks []kv.Check, writes ...kv.Write) {
		f.Helper()
		_, err := f.db.Commit(f.ctx, &kv.Txn{Checks: checks, Writes: append([]kv.Write{put("a", "other", "x")}, writes...)})
		f.wantErr(err, kv.ErrInvalid)
	}
	refuse(nil, put("a", "k", "1"), put("a", "k", "2"))
	refuse(nil, put("a", "k", "1"), del("a", "k"))
	refuse([]kv.Check{check("a", "k", 0), check("a", "k", 0)})
	refuse(nil, put("a", "", "empty key"))
	refuse(nil, put("", "k", "no space"))
	refuse(nil, put("a\x00", "k", "odd space"))
	link, feed := put("plain", "k", "x"), put("plain", "k", "x")
	link.Link, feed.Feed = "gs://b/o", []byte{}
	refuse(nil, link)
	refuse(nil, feed)
	f.wantKeys("a", kv.Range{IncludeExpired: true})
	f.wantKeys("plain", kv.Range{IncludeExpired: true})
	// One key may be checked and written, in several spaces.
	f.commit([]kv.Check{check("a", "k", 0), check("plain", "k", 0)}, put("a", "k", "1"), put("plain", "k", "1"))
}
