package bigtable

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/holdfast-dev/holdfast/kv"
)

// Tags of a state cell. The order matters: "locked, or unlocked with a version of
// at least v" is one range of values, from 00 v to 02.
const (
	tagUnlocked = 0
	tagLocked   = 1
	tagEnd      = 2
)

// Flags of a state: what the row was when its version was made.
const (
	flagTombstone   = 0 // deleted
	flagLive        = 1
	flagPlaceholder = 2 // never existed; its version only tells how old it is
)

const (
	txIDSize     = 16
	unlockedSize = 1 + versionSize + 1 + 4
	headerSize   = unlockedSize + txIDSize
)

// txID names a transaction: p 8, process 4, random 4.
type txID [txIDSize]byte

func (id txID) p() uint64 { return binary.BigEndian.Uint64(id[:8]) }

// state is the decoded state cell of a row. The zero value: the row has none.
//
//	unlocked: 00, version 14, flag 1, touch 4
//	locked:   01, version 14, flag 1, touch 4 (as before the lock), transaction 16, intent
//
// A state never occurs twice in the life of a row: a change takes a larger version,
// and unlocking without a change adds 1 to touch. So a compare-and-set that
// arrives late never matches.
type state struct {
	raw     []byte // nil if there is no cell
	version version
	flag    byte
	touch   uint32
	locked  bool
	tx      txID
	intent  []byte
}

func parseState(raw []byte) (state, error) {
	if raw == nil {
		return state{}, nil
	}
	if len(raw) < unlockedSize || raw[0] > tagLocked || raw[0] == tagUnlocked && len(raw) != unlockedSize || raw[0] == tagLocked && len(raw) <= headerSize {
		return state{}, fmt.Errorf("%w: state cell of %d bytes", kv.ErrCorrupt, len(raw))
	}
	s := state{
		raw:     raw,
		version: parseVersion(raw[1:]),
		flag:    raw[1+versionSize],
		touch:   binary.BigEndian.Uint32(raw[2+versionSize:]),
	}
	if s.flag > flagPlaceholder {
		return state{}, fmt.Errorf("%w: flag %d of a state cell", kv.ErrCorrupt, s.flag)
	}
	if raw[0] == tagLocked {
		s.locked = true
		copy(s.tx[:], raw[unlockedSize:])
		s.intent = raw[headerSize:]
	}
	return s, nil
}

func appendState(b []byte, tag byte, v version, flag byte, touch uint32) []byte {
	b = append(v.append(append(b, tag)), flag)
	return binary.BigEndian.AppendUint32(b, touch)
}

func unlocked(v version, flag byte, touch uint32) []byte {
	return appendState(make([]byte, 0, unlockedSize), tagUnlocked, v, flag, touch)
}

// lockedBy is s with a lock. An absent row is locked as a placeholder with the
// version never, which must be fresh.
func (s state) lockedBy(id txID, intent []byte, never version) []byte {
	if s.raw == nil {
		s.version, s.flag = never, flagPlaceholder
	}
	b := appendState(make([]byte, 0, headerSize+len(intent)), tagLocked, s.version, s.flag, s.touch)
	return append(append(b, id[:]...), intent...)
}

// touched is s without its lock and with the next touch.
func (s state) touched() []byte { return unlocked(s.version, s.flag, s.touch+1) }

// live reports whether the row existed before any lock.
func (s state) live() bool { return s.raw != nil && s.flag == flagLive }

// Kinds of an intent.
const (
	intentWrite  = 'W'
	intentDelete = 'D'
	intentRead   = 'R' // the row is only checked
)

// intent is what a transaction will do to a row once it is committed. It stands in
// the same cell as the lock, so that nobody ever sees the lock without it.
//
//	kind 1, options 1 (bit 0: a feed entry follows), [length of the entry, entry], item
type intent struct {
	kind byte
	feed []byte // nil if there is no entry
	item []byte // of a write
}

const optionFeed = 1

func (i intent) encode() []byte {
	b := make([]byte, 0, 2+binary.MaxVarintLen64+len(i.feed)+len(i.item))
	if i.feed == nil {
		b = append(b, i.kind, 0)
	} else {
		b = binary.AppendUvarint(append(b, i.kind, optionFeed), uint64(len(i.feed)))
		b = append(b, i.feed...)
	}
	return append(b, i.item...)
}

func parseIntent(b []byte) (intent, error) {
	bad := fmt.Errorf("%w: intent of %d bytes", kv.ErrCorrupt, len(b))
	if len(b) < 2 || b[1] > optionFeed || !bytes.ContainsRune([]byte("WDR"), rune(b[0])) {
		return intent{}, bad
	}
	i := intent{kind: b[0], item: b[2:]}
	if b[1] == optionFeed {
		n, size := binary.Uvarint(i.item)
		if size <= 0 || n > uint64(len(i.item)-size) {
			return intent{}, bad
		}
		i.feed, i.item = i.item[size:size+int(n):size+int(n)], i.item[size+int(n):]
	}
	return i, nil
}
