package bigtable

import (
	"context"
	"hash/maphash"
	"slices"
	"time"
)

// stripes keep the commits of this process that are about the same rows out of each
// other's way. They spare calls and are not needed for anything else, so nobody
// waits for them long.
type stripes struct {
	seed maphash.Seed
	all  [256]chan struct{}
}

// Above so many rows a commit takes no stripes: it would hold up all others.
const mostStripes = 16

// stripeWait bounds the wait for each stripe.
const stripeWait = 100 * time.Millisecond

func (s *stripes) init() {
	s.seed = maphash.MakeSeed()
	for i := range s.all {
		s.all[i] = make(chan struct{}, 1)
	}
}

// lock takes the stripes of rows, in order, as far as they come free in time, and
// returns a function that gives them back.
func (s *stripes) lock(ctx context.Context, parts []part) (unlock func()) {
	if len(parts) > mostStripes {
		return func() {}
	}
	var wanted []int
	for i := range parts {
		h := maphash.String(s.seed, parts[i].key) ^ maphash.String(s.seed, parts[i].space.table.name)
		wanted = append(wanted, int(h%uint64(len(s.all))))
	}
	slices.Sort(wanted)
	wanted = slices.Compact(wanted)
	timer := time.NewTimer(stripeWait)
	defer timer.Stop()
	var held []int
wait:
	for _, i := range wanted {
		select {
		case s.all[i] <- struct{}{}:
			held = append(held, i)
		case <-timer.C:
			break wait
		case <-ctx.Done():
			break wait
		}
	}
	return func() {
		for _, i := range held {
			<-s.all[i]
		}
	}
}
