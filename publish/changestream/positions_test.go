package changestream_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/spanner/spannertest"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/publish"
	"github.com/holdfast-dev/holdfast/publish/changestream"
	"github.com/holdfast-dev/holdfast/publish/changestream/streamtest"
)

// metadata is a server with an empty database.
func metadataServer(t *testing.T) []option.ClientOption {
	t.Helper()
	s, err := spannertest.NewServer("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.SetLogger(func(string, ...any) {})
	t.Cleanup(s.Close)
	return []option.ClientOption{
		option.WithEndpoint("passthrough:///" + s.Addr), option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())),
	}
}

func positions(t *testing.T, owner string, c clock.Clock, client []option.ClientOption) *changestream.Positions {
	t.Helper()
	p, err := changestream.OpenPositions(t.Context(), changestream.PositionsOptions{
		Database: streamtest.Database, Stream: "s", Owner: owner, Clock: c,
	}, client...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func TestPositionsInSpanner(t *testing.T) {
	ctx, client := t.Context(), metadataServer(t)
	c := clock.NewManual(time.Date(2026, 8, 20, 10, 0, 0, 0, time.UTC))
	a, b := positions(t, "a", c, client), positions(t, "b", c, client)
	claim := func(p *changestream.Positions, lease time.Duration, want bool) {
		t.Helper()
		if got, err := p.Claim(ctx, lease); got != want || err != nil {
			t.Fatalf("claim: %v, %v, want %v", got, err, want)
		}
	}
	if err := a.Save(ctx, nil, nil); !errors.Is(err, publish.ErrDeposed) {
		t.Errorf("Save without a claim: %v", err)
	}
	claim(a, time.Minute, true)
	claim(b, time.Minute, false)
	claim(a, time.Minute, true)

	at := time.Date(2026, 8, 20, 10, 0, 0, 123456789, time.UTC)
	one := publish.Position{Token: "one", Start: at, Watermark: at.Add(time.Nanosecond), State: publish.Running}
	two := publish.Position{Token: "two", Parents: []string{"one", "x"}, Start: at, Watermark: at, State: publish.Created}
	save := func(p *changestream.Positions, positions []publish.Position, forget ...string) {
		t.Helper()
		if err := p.Save(ctx, positions, forget); err != nil {
			t.Fatal(err)
		}
	}
	load := func(p *changestream.Positions, want ...publish.Position) {
		t.Helper()
		got, err := p.Load(ctx)
		if err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(got, func(x, y publish.Position) int { return strings.Compare(x.Token, y.Token) })
		if d := cmp.Diff(want, got); d != "" {
			t.Error("-want +got\n" + d)
		}
	}
	save(a, []publish.Position{one, two})
	load(b, one, two)

	c.Advance(time.Minute)
	claim(b, time.Minute, true)
	if err := a.Save(ctx, []publish.Position{two}, []string{"one"}); !errors.Is(err, publish.ErrDeposed) {
		t.Errorf("Save after another's claim: %v", err)
	}
	if err := a.Reset(ctx); !errors.Is(err, publish.ErrDeposed) {
		t.Errorf("Reset after another's claim: %v", err)
	}
	claim(a, 0, false) // gives back nothing
	load(a, one, two)
	one.State = publish.Finished
	save(b, []publish.Position{one}, "two", "unknown")
	load(a, one)
	claim(b, 0, true)
	claim(a, time.Minute, true)

	other, err := changestream.OpenPositions(ctx, changestream.PositionsOptions{Database: streamtest.Database, Stream: "s2", Owner: "a", Clock: c}, client...)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	claim(other, time.Minute, true)
	load(other)
	if err := other.Reset(ctx); err != nil {
		t.Fatal(err)
	}
	load(a, one)
	if err := a.Reset(ctx); err != nil {
		t.Fatal(err)
	}
	load(a)
}
