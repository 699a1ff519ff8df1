package queue

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/kvtest"
)

func (w *world) renew(q *Queue, tokens ...string) []Renewal {
	w.t.Helper()
	r, err := q.RenewLease(w.t.Context(), tokens...)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

func TestLeaseKeepsAMessageFromOthersUntilItEnds(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		w.send(q, out("a")...)
		first := w.expect(q, 1, "a")[0]
		w.expect(q, 1)
		m, took := w.wait(q)
		if took != 11*time.Second {
			t.Errorf("delivered again after %v, want 10s lease and 1s rest", took)
		}
		if !m.DeliverTime.Equal(first.DeliverTime) || m.Attempts != 1 || m.Token() == first.Token() {
			t.Errorf("second delivery %+v after %+v", m, first)
		}
		if n := q.counts.expired.Load(); n != 1 {
			t.Errorf("%d leases expired, want 1", n)
		}
	})
}

func TestGapsBetweenDeliveriesGrowThenAreAnHour(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		w.send(q, out("a")...)
		w.wait(q)
		begin := w.clock.Now()
		var gaps []time.Duration
		for w.clock.Now().Sub(begin) < 4*time.Hour {
			_, took := w.wait(q)
			gaps = append(gaps, took)
		}
		s := time.Second
		want := []time.Duration{11 * s, 12 * s, 14 * s, 18 * s, 26 * s, 42 * s, 74 * s, 138 * s, 266 * s, 522 * s}
		if got := gaps[:len(want)]; !slices.Equal(got, want) {
			t.Errorf("first gaps %v, want %v", got, want)
		}
		last := gaps[len(gaps)-1]
		if most := slices.Max(gaps[:len(gaps)-3]); most != 610*s {
			t.Errorf("longest gap within the first hour %v, want 10m10s", most)
		}
		if last != time.Hour+10*s {
			t.Errorf("last gap %v, want 1h and the lease", last)
		}
	})
}

func TestBackoffSettings(t *testing.T) {
	inWorld(t, func(w *world) {
		ms := time.Millisecond
		q := w.create("q", Settings{Lease: 5 * ms, RetryFirst: 2 * ms, RetryMost: 6 * ms, RetryWindow: 40 * ms, RetryLate: 20 * ms})
		w.send(q, out("a")...)
		w.wait(q)
		var gaps []time.Duration
		for range 6 {
			_, took := w.wait(q)
			gaps = append(gaps, took)
		}
		// Leases are lost at 5, 12, 21, 32, 43, 68 ms.
		if want := []time.Duration{7 * ms, 9 * ms, 11 * ms, 11 * ms, 25 * ms, 25 * ms}; !slices.Equal(gaps, want) {
			t.Errorf("gaps %v, want %v", gaps, want)
		}
	})
}

func TestRenewedLeaseEndsLaterAndDoesNotCount(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		w.send(q, out("a")...)
		tok := w.expect(q, 1, "a")[0].Token()
		pass(8 * time.Second)
		r := w.renew(q, tok)
		if end := w.clock.Now().Add(10 * time.Second); len(r) != 1 || r[0].OldToken != tok || r[0].NewToken == "" || !r[0].LeaseEnd.Equal(end) {
			t.Fatalf("renewal %+v, want an end at %v", r, end)
		}
		pass(7 * time.Second)
		w.expect(q, 1)
		m, took := w.wait(q)
		if took != 4*time.Second || m.Attempts != 1 {
			t.Errorf("delivered after %v with %d attempts, want 4s and 1", took, m.Attempts)
		}
	})
}

func TestRenewalRows(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		w.send(q, out("acked", "expired", "live1", "live2", "retried")...)
		tok, end := map[string]string{}, map[string]time.Time{}
		note := func(batch []Message) {
			for _, m := range batch {
				tok[string(m.Key)], end[string(m.Key)] = m.Token(), m.LeaseEnd
			}
		}
		w.expect(q, 1, "acked")
		note(w.expect(q, 1, "expired"))
		pass(11 * time.Second)
		note(w.expect(q, 9, "live1", "live2", "retried", "acked", "expired"))
		expired := tok["expired"]
		pass(9 * time.Second)
		note(w.receive(q, 9))
		w.mustAck(q, "acked")
		if err := q.Retry(w.t.Context(), tok["retried"], -1, ""); err != nil {
			t.Fatal(err)
		}
		_ = expired
		now := w.clock.Now()
		rows := w.renew(q, tok["live1"], "garbage", "", tok["acked"], tok["retried"], tok["live2"], tok["live1"], tok["live1"][1:])
		type row struct {
			old     string
			renewed bool
			end     time.Time
		}
		var got []row
		for _, r := range rows {
			got = append(got, row{r.OldToken, r.NewToken != "", r.LeaseEnd})
		}
		renewed := now.Add(10 * time.Second)
		want := []row{
			{tok["live1"], true, renewed},
			{tok["acked"], false, end["acked"]},
			{tok["retried"], false, end["retried"]},
			{tok["live2"], true, renewed},
			{tok["live1"], false, end["live1"]},
		}
		if d := cmp.Diff(want, got, cmp.AllowUnexported(row{})); d != "" {
			t.Errorf("rows, want - got +:\n%s", d)
		}
		if r := w.renew(q); len(r) != 0 {
			t.Errorf("no tokens give %+v", r)
		}
		pass(time.Second) // the ends of the old tokens
		if r := w.renew(q, tok["live1"], tok["acked"], tok["retried"]); len(r) != 0 {
			t.Errorf("expired tokens give %+v", r)
		}
	})
}

func TestRenewalAnyNumberOfTimes(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		w.send(q, out("a")...)
		tok := w.expect(q, 1, "a")[0].Token()
		for range 100 {
			pass(9 * time.Second)
			r := w.renew(q, tok)
			if len(r) != 1 || r[0].NewToken == "" || r[0].NewToken == tok {
				t.Fatalf("renewal %+v", r)
			}
			tok = r[0].NewToken
		}
		w.expect(q, 1)
		w.mustAck(q, "a")
	})
}

func TestTokenIsPrintableAndCannotBeForged(t *testing.T) {
	codec := newTokenCodec([]byte("0123456789abcdef"))
	other := newTokenCodec([]byte("0123456789abcdeg"))
	want := token{queue: 7, lease: leaseID{3, 1 << 40}, end: time.Date(2030, 1, 2, 3, 4, 5, 6, time.UTC), key: "k\x00\xff"}
	text := codec.encode(want)
	if strings.Trim(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != "" {
		t.Errorf("token %q has other characters than base64url", text)
	}
	if got, ok := codec.decode(text); !ok || got != want {
		t.Errorf("decoded %+v, %v", got, ok)
	}
	if _, ok := other.decode(text); ok {
		t.Error("a token of another key is accepted")
	}
	for i := range text {
		b := []byte(text)
		b[i] ^= 1
		if got, ok := codec.decode(string(b)); ok {
			t.Errorf("with character %d changed it decodes to %+v", i, got)
		}
	}
}

func FuzzTokenDecode(f *testing.F) {
	codec := newTokenCodec([]byte("0123456789abcdef"))
	f.Add(codec.encode(token{queue: 1, lease: leaseID{1, 1}, end: time.Unix(1, 1), key: "k"}))
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		if got, ok := codec.decode(text); ok && codec.encode(got) != text {
			t.Errorf("%q decodes to %+v, which encodes differently", text, got)
		}
	})
}

func FuzzRecordDecode(f *testing.F) {
	r := record{deliver: time.Unix(1, 2), due: time.Unix(3, 4), lost: 5, reason: "r", payload: []byte("p")}
	f.Add(r.encode())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeRecord(b)
		if err != nil {
			if !errors.Is(err, kv.ErrCorrupt) {
				t.Errorf("error %v", err)
			}
			return
		}
		again, err := decodeRecord(r.encode())
		if err != nil || !again.due.Equal(r.due) || again.lost != r.lost || !bytes.Equal(again.payload, r.payload) {
			t.Errorf("%+v becomes %+v, %v", r, again, err)
		}
	})
}

func TestRetryCountsAsALostLeaseAndRests(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		w.send(q, out("a")...)
		m := w.expect(q, 1, "a")[0]
		pass(3 * time.Second)
		if err := q.Retry(w.t.Context(), m.Token(), -1, "no luck"); err != nil {
			t.Fatal(err)
		}
		m2, took := w.wait(q)
		if took != time.Second || m2.Attempts != 1 || m2.Reason != "no luck" {
			t.Errorf("after %v: %+v", took, m2)
		}
		if err := q.Retry(w.t.Context(), m.Token(), -1, ""); !errors.Is(err, ErrLeaseLost) {
			t.Errorf("Retry with an old token: %v", err)
		}
		if err := q.Retry(w.t.Context(), "garbage", -1, ""); !errors.Is(err, kv.ErrInvalid) {
			t.Errorf("Retry with garbage: %v", err)
		}
		if err := q.Retry(w.t.Context(), m2.Token(), 90*time.Second, ""); err != nil {
			t.Fatal(err)
		}
		m3, took := w.wait(q)
		if took != 90*time.Second || m3.Attempts != 2 || m3.Reason != "no luck" {
			t.Errorf("after %v: %+v", took, m3)
		}
		if err := q.Retry(w.t.Context(), m3.Token(), 0, ""); err != nil {
			t.Fatal(err)
		}
		if _, took := w.wait(q); took != 0 {
			t.Errorf("a rest of 0 took %v", took)
		}
		if n := q.counts.expired.Load(); n != 0 {
			t.Errorf("%d leases counted as expired, want 0", n)
		}
	})
}

func TestRetriesOfManyShareCommits(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		for i := range 300 {
			w.send(q, out(number(i))...)
		}
		batch := w.receive(q, 300)
		commits := 0
		w.faults.Before(func(_ context.Context, c kvtest.Call) error {
			if c.Op == kvtest.OpCommit {
				commits++ // the keeper's goroutine only
				time.Sleep(time.Millisecond)
			}
			return nil
		})
		done := make(chan error, len(batch))
		for _, m := range batch {
			go func() { done <- q.Retry(w.t.Context(), m.Token(), time.Second, "") }()
		}
		for range batch {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		synctest.Wait()
		w.faults.Reset()
		if commits > 4 { // one may begin with the first retry
			t.Errorf("%d commits for 300 retries", commits)
		}
	})
}

func (w *world) deadLetters(q *Queue) []DeadLetter {
	w.t.Helper()
	letters, err := q.DeadLetters(w.t.Context(), nil, 100)
	if err != nil {
		w.t.Fatal(err)
	}
	st, err := q.Stats(w.t.Context())
	if err != nil || int(st.DeadLetters) != len(letters) {
		w.t.Fatalf("%d dead letters, but %d are counted, %v", len(letters), st.DeadLetters, err)
	}
	return letters
}

func TestLastAttemptMovesToTheDeadLetters(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{Lease: time.Minute, MaxAttempts: 5})
		w.send(q, out("good", "poison")...)
		sent := w.clock.Now()
		w.expect(q, 1, "good")
		w.mustAck(q, "good")
		for i := range 5 {
			m, _ := w.wait(q)
			if m.Attempts != i {
				t.Errorf("delivery %d says %d attempts", i, m.Attempts)
			}
			if i == 2 {
				if err := q.Retry(w.t.Context(), m.Token(), -1, "cannot parse"); err != nil {
					t.Fatal(err)
				}
			}
		}
		pass(time.Minute)
		died := w.clock.Now()
		if left := w.stored(q); len(left) != 0 {
			t.Errorf("left in the queue: %v", left)
		}
		pass(24 * time.Hour)
		w.expect(q, 9)
		letters := w.deadLetters(q)
		if len(letters) != 1 {
			t.Fatalf("dead letters %+v", letters)
		}
		l := letters[0]
		if m := l.Message; string(m.Key) != "poison" || string(m.Payload) != "poison" || m.Attempts != 5 ||
			m.Reason != "cannot parse" || !m.DeliverTime.Equal(sent) || !l.Died.Equal(died) {
			t.Errorf("dead letter %+v", l)
		}
	})
}

func (w *world) die(q *Queue, keys ...string) {
	w.t.Helper()
	for _, m := range w.expect(q, 100, keys...) {
		if err := q.Retry(w.t.Context(), m.Token(), -1, "died"); err != nil {
			w.t.Fatal(err)
		}
	}
}

func TestRedriveSendsAgainWithNoAttempts(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{MaxAttempts: 1})
		ctx := w.t.Context()
		w.send(q, out("a", "b", "c")...)
		w.die(q, "a", "b", "c")
		letters := w.deadLetters(q)
		pass(2 * time.Hour)
		if err := q.Redrive(ctx, letters[1].ID); err != nil {
			t.Fatal(err)
		}
		if err := q.Redrive(ctx, letters[1].ID); !errors.Is(err, ErrNotFound) {
			t.Errorf("second Redrive: %v, want ErrNotFound", err)
		}
		m := w.expect(q, 9, "b")[0]
		if m.Attempts != 0 || m.Reason != "" || string(m.Payload) != "b" || !m.DeliverTime.Equal(w.clock.Now()) {
			t.Errorf("redriven message %+v", m)
		}
		w.send(q, out("a")...)
		if err := q.Redrive(ctx, letters[0].ID); !errors.Is(err, ErrExists) {
			t.Errorf("Redrive of a key in use: %v, want ErrExists", err)
		}
		if n, err := q.RedriveAll(ctx); n != 1 || err != nil {
			t.Errorf("RedriveAll: %d, %v; want c only", n, err)
		}
		w.die(q, "a", "c")
		// Two dead letters of one key: none replaces the other.
		if got := w.deadLetters(q); len(got) != 3 || string(got[0].Message.Key) != "a" || string(got[1].Message.Key) != "a" {
			t.Errorf("dead letters %+v", got)
		}
		if err := q.DropDead(ctx, letters[0].ID); err != nil {
			t.Error(err)
		}
		if err := q.DropDead(ctx, letters[0].ID); !errors.Is(err, ErrNotFound) {
			t.Errorf("second DropDead: %v", err)
		}
		if n, err := q.DropAllDead(ctx); n != 2 || err != nil {
			t.Errorf("DropAllDead: %d, %v", n, err)
		}
		if got := w.deadLetters(q); len(got) != 0 {
			t.Errorf("dead letters %+v", got)
		}
	})
}

func TestManyDeadLettersMoveInBoundedCommits(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{MaxAttempts: 1, Lease: time.Second})
		const many = 450
		var all []Outgoing
		for i := range many {
			all = append(all, Outgoing{Key: []byte(number(i))})
		}
		w.send(q, all...)
		w.receive(q, many)
		pass(2 * time.Second)
		for _, move := range []func(context.Context) (int, error){q.RedriveAll, q.DropAllDead} {
			largest := 0
			w.faults.Before(func(_ context.Context, c kvtest.Call) error {
				if c.Op == kvtest.OpCommit {
					largest = max(largest, len(c.Txn.Writes))
				}
				return nil
			})
			n, err := move(w.t.Context())
			w.faults.Reset()
			if n != many || err != nil || largest > 5*settleCount+1 {
				t.Errorf("moved %d, %v, with up to %d writes in a commit", n, err, largest)
			}
			w.receive(q, many)
			pass(2 * time.Second)
		}
	})
}

func TestDeadLettersArePaged(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{MaxAttempts: 1})
		w.send(q, out("a", "b", "c")...)
		w.die(q, "a", "b", "c")
		var got []string
		var after []byte
		for {
			page, err := q.DeadLetters(w.t.Context(), after, 2)
			if err != nil {
				t.Fatal(err)
			}
			if len(page) == 0 {
				break
			}
			for _, l := range page {
				got = append(got, string(l.Message.Key))
				after = l.ID
			}
		}
		if !slices.Equal(got, []string{"a", "b", "c"}) {
			t.Errorf("pages have %q", got)
		}
	})
}

func TestOldestFirstIncludesLeasedAndPoisonMessages(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		w.send(q, out("poison")...)
		for range 6 {
			w.wait(q)
		}
		w.send(q, out("leased")...)
		w.wait(q)
		for i := range 5 {
			pass(time.Millisecond)
			w.send(q, out(number(i))...)
		}
		w.send(q, at("future", w.clock.Now().Add(time.Hour)))
		want := []string{"poison", "leased", "k0000", "k0001", "k0002", "k0003", "k0004", "future"}
		for n := 1; n <= len(want)+1; n++ {
			list, err := q.Oldest(w.t.Context(), n)
			if got := keysOf(list); err != nil || !slices.Equal(got, want[:min(n, len(want))]) {
				t.Errorf("oldest %d: %q, %v", n, got, err)
			}
		}
		if n := len(w.receive(q, 9)); n != 5 {
			t.Errorf("looking took leases: %d left to receive, want 5", n)
		}
	})
}

func TestPeekListAndGetTakeNoLease(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		now := w.clock.Now()
		w.send(q, at("c", now.Add(1)), at("a", now.Add(3)), at("b", now.Add(2)), at("d", now.Add(time.Hour)))
		pass(time.Second)
		peeked, err := q.Peek(w.t.Context(), 9)
		if got := keysOf(peeked); err != nil || !slices.Equal(got, []string{"c", "b", "a", "d"}) {
			t.Errorf("peeked %q, %v", got, err)
		}
		listed, err := q.List(w.t.Context(), []byte("b"), []byte("d"), 9)
		if got := keysOf(listed); err != nil || !slices.Equal(got, []string{"b", "c"}) {
			t.Errorf("listed %q, %v", got, err)
		}
		err = w.update(func(tx *kv.Tx) error {
			m, ok, err := q.Get(tx, []byte("a"))
			if !ok || string(m.Payload) != "a" || m.Token() != "" {
				t.Errorf("got %+v, %v", m, ok)
			}
			if _, ok, _ := q.Get(tx, []byte("x")); ok {
				t.Error("got a message that does not exist")
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
		w.expect(q, 9, "c", "b", "a")
	})
}

func TestStatsAndMetricsOfTheSpecification(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{MaxAttempts: 2})
		w.send(q, out("a", "b", "c")...)
		w.expect(q, 1, "a")
		w.mustAck(q, "a")
		w.expect(q, 1, "b")
		pass(40 * time.Second) // b dies: no, it waits, ready after one lost lease
		st, err := q.Stats(w.t.Context())
		want := Stats{Shards: 1, Ready: 2, Sent: 3, Acked: 1, Expired: 1, OldestAge: 40 * time.Second}
		if err != nil || st != want {
			t.Errorf("stats %+v, %v; want %+v", st, err, want)
		}
		page := w.scrape()
		for _, line := range []string{
			`holdfast_queue_buffered_ready_messages{database="db",queue="q"} 2`,
			`holdfast_queue_message_send_count_total{database="db",queue="q"} 3`,
			`holdfast_queue_message_ack_count_total{database="db",queue="q"} 1`,
			`holdfast_queue_lease_expiration_count_total{database="db",queue="q"} 1`,
			`holdfast_queue_oldest_unacked_message_age{database="db",queue="q"} 40`,
			`holdfast_queue_dead_letters{database="db",queue="q"} 0`,
		} {
			if !strings.Contains(page, line+"\n") {
				t.Errorf("no line %s", line)
			}
		}
		w.send(q, at("later", w.clock.Now().Add(time.Hour)))
		w.mustAck(q, "b", "c")
		if st, err := q.Stats(w.t.Context()); err != nil || st.OldestAge != 0 {
			t.Errorf("age with a future message only: %v, %v", st.OldestAge, err)
		}
		if err := w.metrics.Err(); err != nil {
			t.Error(err)
		}
	})
}

func TestBufferIsBoundedInCountAndBytes(t *testing.T) {
	inWorld(t, func(w *world) {
		q := w.create("q", Settings{})
		for i := range 30 {
			var batch []Outgoing
			for j := range 100 {
				batch = append(batch, out(fmt.Sprintf("%02d-%02d", i, j))...)
			}
			w.send(q, batch...)
		}
		synctest.Wait()
		check := func(n int) {
			t.Helper()
			q.mu.Lock()
			defer q.mu.Unlock()
			sh := q.shards[0]
			if len(sh.ready) > bufferCount || len(q.known) > bufferCount+n || sh.readyBytes > bufferBytes {
				t.Errorf("%d ready of %d bytes, %d known", len(sh.ready), sh.readyBytes, len(q.known))
			}
		}
		check(0)
		var got []string
		for len(got) < 3000 {
			batch := w.receive(q, 70)
			if len(batch) == 0 {
				t.Fatalf("nothing to receive after %d", len(got))
			}
			got = append(got, keysOf(batch)...)
			w.mustAck(q, keysOf(batch)...)
			check(0)
		}
		slices.Sort(got)
		if len(slices.Compact(got)) != 3000 {
			t.Error("a message came twice")
		}
		big := make([]byte, bufferBytes/2+1)
		for i := range 4 {
			w.send(q, Outgoing{Key: []byte(number(i)), Payload: big})
		}
		w.send(q, Outgoing{Key: []byte("largest"), Payload: make([]byte, MaxPayloadSize)})
		synctest.Wait()
		check(0)
		for range 5 {
			w.wait(q)
		}
	})
}
