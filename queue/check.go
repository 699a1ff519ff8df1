package queue

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-dev/holdfast/kv"
)

// checkPage is how many rows Check confirms at one time.
const checkPage = 256

// Check compares the messages of all queues with their indexes, and calls found for
// each disagreement: an index entry without its message, or a message without its
// entries. It reads only, beside all other work, and confirms each disagreement by
// reading both rows at one instant. The key is valid until found returns.
func (s *Service) Check(ctx context.Context, found func(space string, key []byte, detail string)) error {
	names, err := s.Names(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		q, err := s.Queue(ctx, name)
		switch {
		case errors.Is(err, ErrQueueNotFound): // dropped meanwhile
			continue
		case err != nil:
			return err
		}
		for _, space := range []string{readySpace, movedSpace} {
			if err := q.checkEntries(ctx, space, found); err != nil {
				return fmt.Errorf("queue: check %q: %w", name, err)
			}
		}
		if err := q.checkMessages(ctx, found); err != nil {
			return fmt.Errorf("queue: check %q: %w", name, err)
		}
	}
	return nil
}

// checkEntries looks for entries of an index whose message is gone, or belongs at
// another place.
func (q *Queue) checkEntries(ctx context.Context, space string, found func(space string, key []byte, detail string)) error {
	return q.pages(ctx, space, func(keys [][]byte) error {
		refs := make([]kv.Ref, 0, 2*len(keys))
		for _, k := range keys {
			_, message, err := q.splitTimeKey(k)
			if err != nil {
				return err
			}
			refs = append(refs, kv.Ref{Space: space, Key: k}, kv.Ref{Space: messageSpace, Key: q.messageKey(message)})
		}
		rows, err := q.s.db.Get(ctx, refs...)
		if err != nil {
			return err
		}
		for i, k := range keys {
			entry, message := rows[2*i], rows[2*i+1]
			if !entry.Exists() {
				continue // it went meanwhile, as it should with its message
			}
			if !message.Exists() {
				found(space, k, "queue "+q.name+": entry without its message")
				continue
			}
			r, err := decodeRecord(message.Value)
			if err != nil {
				return err
			}
			if !bytes.Equal(k, q.place(space, &r, message.Key[len(q.prefix):])) {
				found(space, k, "queue "+q.name+": entry at a place where its message is not")
			}
		}
		return nil
	})
}

// place returns the key that a message has in an index, nil if it has none.
func (q *Queue) place(space string, r *record, k []byte) []byte {
	switch {
	case space == readySpace:
		return q.timeKey(r.due, k)
	case r.moved():
		return q.timeKey(r.deliver, k)
	}
	return nil
}

// checkMessages looks for messages without an entry in an index.
func (q *Queue) checkMessages(ctx context.Context, found func(space string, key []byte, detail string)) error {
	return q.pages(ctx, messageSpace, func(keys [][]byte) error {
		for _, space := range []string{readySpace, movedSpace} {
			missing, err := q.withoutEntry(ctx, space, keys)
			if err != nil {
				return err
			}
			for _, k := range missing {
				found(messageSpace, k, "queue "+q.name+": message without its entry in "+space)
			}
		}
		return nil
	})
}

// withoutEntry returns those of the keys of messages that have no entry in an index
// although they should. The place of an entry is known only once the message has
// been read, so message and entry are read together afterwards.
func (q *Queue) withoutEntry(ctx context.Context, space string, keys [][]byte) ([][]byte, error) {
	refs := make([]kv.Ref, len(keys))
	for i, k := range keys {
		refs[i] = kv.Ref{Space: messageSpace, Key: k}
	}
	rows, err := q.s.db.Get(ctx, refs...)
	if err != nil {
		return nil, err
	}
	var pairs []kv.Ref
	var versions []kv.Version
	for _, row := range rows {
		if !row.Exists() {
			continue
		}
		r, err := decodeRecord(row.Value)
		if err != nil {
			return nil, err
		}
		if at := q.place(space, &r, row.Key[len(q.prefix):]); at != nil {
			pairs = append(pairs, kv.Ref{Space: messageSpace, Key: row.Key}, kv.Ref{Space: space, Key: at})
			versions = append(versions, row.Version)
		}
	}
	rows, err = q.s.db.Get(ctx, pairs...)
	if err != nil {
		return nil, err
	}
	var missing [][]byte
	for i, v := range versions {
		// A message of another version has moved since: its entry is elsewhere.
		if rows[2*i].Version == v && !rows[2*i+1].Exists() {
			missing = append(missing, rows[2*i].Key)
		}
	}
	return missing, nil
}

// pages calls f with the keys of the queue's rows in a space, page by page.
func (q *Queue) pages(ctx context.Context, space string, f func(keys [][]byte) error) error {
	r := kv.Prefix(q.prefix)
	r.Limit = checkPage
	for {
		var keys [][]byte
		err := q.s.db.Scan(ctx, space, r, func(row kv.Row) bool {
			keys = append(keys, bytes.Clone(row.Key))
			return true
		})
		if err != nil || len(keys) == 0 {
			return err
		}
		if err := f(keys); err != nil {
			return err
		}
		r.Start = append(keys[len(keys)-1], 0)
	}
}
