package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-dev/holdfast/kv"
	"github.com/holdfast-dev/holdfast/kv/postgres"
	"github.com/holdfast-dev/holdfast/kv/postgres/pgtest"
)

const secret = "s3cr3t-of-the-test"

func TestOpenErrorsNameTheSettingAndNoPassword(t *testing.T) {
	server := pgtest.Shared(t)
	admin := connect(t, server.URL())
	admin.exec(fmt.Sprintf("create role locked login password '%s'", "another"))
	admin.exec("create role guest login")
	admin.exec("revoke create on database postgres from public")
	newer := pgtest.NewSchema()
	open(t, postgres.Options{URL: server.URL(), Schema: newer})
	admin.exec(fmt.Sprintf(`insert into "%s".migrations values (1000, 'later')`, newer))
	for _, c := range []struct {
		name    string
		options postgres.Options
		want    []string
		is      error
	}{
		{"password", postgres.Options{URL: server.URLFor("locked", secret, "postgres")}, []string{"URL:", "password"}, nil},
		{"user", postgres.Options{URL: server.URLFor("nobody", secret, "postgres")}, []string{"URL:", "user"}, nil},
		{"database", postgres.Options{URL: server.URLFor("postgres", secret, "nowhere")}, []string{"URL:", "database does not exist"}, nil},
		{"unreachable", postgres.Options{URL: "postgres://u:" + secret + "@127.0.0.1:1/d?connect_timeout=2"}, []string{"URL:", "no connection"}, nil},
		{"broken URL", postgres.Options{URL: "postgres://u:" + secret + "%zz@host/d"}, []string{"URL:"}, kv.ErrInvalid},
		{"broken keywords", postgres.Options{URL: "password=" + secret + " port=x"}, []string{"URL:"}, kv.ErrInvalid},
		{"broken ListenURL", postgres.Options{URL: server.URL(), ListenURL: "postgres://u:" + secret + "%zz@host/d"}, []string{"ListenURL:"}, kv.ErrInvalid},
		{"broken ReadURL", postgres.Options{URL: server.URL(), ReadURL: "postgres://u:" + secret + "%zz@host/d"}, []string{"ReadURL:"}, kv.ErrInvalid},
		{"schema name", postgres.Options{URL: server.URL(), Schema: `a"b`}, []string{"Schema:"}, kv.ErrInvalid},
		{"rights", postgres.Options{URL: server.URLFor("guest", "", "postgres"), Schema: "guests"}, []string{"Schema:", "grant"}, nil},
		{"newer schema", postgres.Options{URL: server.URL(), Schema: newer}, []string{"newer"}, postgres.ErrNewerSchema},
		{"isolation", postgres.Options{URL: withSettings(t, server.URL(), "default_transaction_isolation=serializable")}, []string{"URL:", "default_transaction_isolation"}, nil},
		{"read only", postgres.Options{URL: withSettings(t, server.URL(), "default_transaction_read_only=on"), Schema: "unwritten"}, []string{"URL:", "only reads"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log bytes.Buffer
			c.options.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
			e, err := postgres.Open(t.Context(), c.options)
			if err == nil {
				_ = e.Close()
				t.Fatal("opened")
			}
			for _, part := range c.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error = %v, want it to contain %q", err, part)
				}
			}
			if c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("error = %v, want %v", err, c.is)
			}
			if strings.Contains(err.Error()+log.String(), secret) {
				t.Errorf("the password is in %q or %q", err, log.String())
			}
		})
	}
}

func TestOpenBySeveralAtOnce(t *testing.T) {
	o := postgres.Options{URL: pgtest.Shared(t).URL(), Schema: pgtest.NewSchema()}
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			e, err := postgres.Open(context.Background(), o)
			if err != nil {
				t.Error(err)
				return
			}
			if err := e.CreateSpace(context.Background(), "a", kv.SpaceOptions{}); err != nil {
				t.Error(err)
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// TestSchemaOfAnOwnerWithoutOtherRights is how a careful administrator sets it up.
func TestSchemaOfAnOwnerWithoutOtherRights(t *testing.T) {
	server := pgtest.Shared(t)
	admin := connect(t, server.URL())
	admin.exec("create role tenant login")
	admin.exec("create schema tenants authorization tenant")
	e := open(t, postgres.Options{URL: server.URLFor("tenant", "", "postgres"), Schema: "tenants"})
	create(t, e, "a", feedOptions())
	commit(t, e, fed(put("a", "k", "x"), "e"))
	if got := entries(t, e, "a"); len(got) != 1 {
		t.Errorf("feed = %v", got)
	}
}

// TestSchemasAreApart has the same spaces twice in a database.
func TestSchemasAreApart(t *testing.T) {
	one, _ := openShared(t, postgres.Options{})
	two, _ := openShared(t, postgres.Options{})
	create(t, one, "a", kv.SpaceOptions{})
	create(t, two, "a", kv.SpaceOptions{})
	commit(t, one, put("a", "k", "one"))
	if get(t, two, "a", "k").Exists() {
		t.Error("a row is in both schemas")
	}
}

func TestCommitsRefuseAnotherIsolation(t *testing.T) {
	e, o := openShared(t, postgres.Options{})
	create(t, e, "a", kv.SpaceOptions{})
	admin := connect(t, o.URL)
	admin.exec("create role late login superuser")
	admin.exec("alter role late set default_transaction_isolation = 'read committed'")
	late := open(t, postgres.Options{URL: pgtest.Shared(t).URLFor("late", "", "postgres"), Schema: o.Schema})
	admin.exec("alter role late set default_transaction_isolation = 'repeatable read'")
	_, err := late.Commit(t.Context(), &kv.Txn{Writes: []kv.Write{put("a", "k", "x")}})
	if err == nil || errors.Is(err, kv.ErrUnknownOutcome) {
		t.Errorf("error = %v", err)
	}
	if get(t, e, "a", "k").Exists() {
		t.Error("the row is there")
	}
}
