package bigtable

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	bt "cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
)

func TestOpenNamesTheSetting(t *testing.T) {
	s := newServer(t)
	good := s.options(clock.System{})
	for want, change := range map[string]func(o *Options){
		"project_id":                func(o *Options) { o.ProjectID = "" },
		"instance_id":               func(o *Options) { o.InstanceID = "" },
		"pool_size":                 func(o *Options) { o.PoolSize = -1 },
		"emulator_host":             func(o *Options) { o.CredentialsPath = "key.json" },
		"txn_deadline_ms":           func(o *Options) { o.TxnDeadline = time.Second },
		"txn_record_retention_secs": func(o *Options) { o.TxnRecordRetention = time.Minute },
		"tombstone_retention_secs":  func(o *Options) { o.TombstoneRetention = time.Minute },
		"sweeper_cadence_secs":      func(o *Options) { o.SweeperCadence = -1 },
		"max_tables_per_instance":   func(o *Options) { o.MaxTables = -1 },
		"system_prefix":             func(o *Options) { o.SystemPrefix = strings.Repeat("x", 45) },
	} {
		o := good
		change(&o)
		if _, err := Open(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want one about %s", err, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Open(ctx, good); !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v", err)
	}
}

func TestOpenExplainsWhatTheServiceRefuses(t *testing.T) {
	for _, c := range []struct {
		method string
		code   codes.Code
		want   string
	}{
		{"CheckAndMutateRow", codes.FailedPrecondition, `app_profile "many" does not allow single-row transactions`},
		{"ListTables", codes.PermissionDenied, "lacks rights"},
		{"CreateTable", codes.PermissionDenied, "lacks rights"},
		{"CheckAndMutateRow", codes.PermissionDenied, "lacks rights"},
		{"ListTables", codes.Unauthenticated, "credentials are not accepted"},
		{"ListTables", codes.NotFound, "instance_id"},
	} {
		s := newServer(t)
		s.intercept(func(method string, _ any) error {
			if method == c.method {
				return status.Error(c.code, secret)
			}
			return nil
		}, nil)
		o := s.options(clock.System{})
		o.AppProfile = "many"
		_, err := Open(t.Context(), o)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), secret) {
			t.Errorf("%s %v: error = %v", c.method, c.code, err)
		}
	}
}

// A profile that lets both of two conditional writes succeed is found out.
func TestSelfTestFindsWritesThatAreNotKeptApart(t *testing.T) {
	s := newServer(t)
	s.change = func(res any) {
		if r, ok := res.(*bigtablepb.CheckAndMutateRowResponse); ok {
			r.PredicateMatched = false
		}
	}
	if _, err := Open(t.Context(), s.options(clock.System{})); err == nil || !strings.Contains(err.Error(), "app_profile") {
		t.Errorf("error = %v", err)
	}
}

func TestClockFarFromTheServicesIsWarnedOf(t *testing.T) {
	for _, c := range []struct {
		clock clock.Clock
		warns bool
	}{{clock.System{}, false}, {clock.NewManual(time.Unix(1_800_000_000, 0)), true}} {
		var log bytes.Buffer
		s := newServer(t)
		o := s.options(c.clock)
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		s.openWith(t, o, func(string) error { return nil })
		if got := strings.Contains(log.String(), "level=WARN"); got != c.warns {
			t.Errorf("log: %s", &log)
		}
	}
}

// Credentials come from one of three places, and none is skipped because it is bad.
func TestCredentials(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const key = `{"type":"service_account","client_email":"a@b","private_key":"` + secret + `"}`
	for _, c := range []struct {
		path, want string
	}{
		{filepath.Join(dir, "none"), "no such file"},
		{dir, "not a file"},
		{file("open", key, 0o644), "0600"},
		{file("group", key, 0o640), "0600"},
		{file("text", secret, 0o600), "not JSON"},
		{file("user", `{"type":"authorized_user","client_email":"a@b","private_key":"`+secret+`"}`, 0o600), "service account"},
		{file("empty", `{"type":"service_account"}`, 0o600), "private_key"},
	} {
		_, err := Open(t.Context(), Options{ProjectID: "p", InstanceID: "i", CredentialsPath: c.path})
		if err == nil || !strings.Contains(err.Error(), "credentials_path") || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), secret) {
			t.Errorf("error = %v, want one about %q", err, c.want)
		}
	}
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{EmulatorHost: "localhost:1"}, "emulator"},
		{Options{CredentialsPath: file("good", key, 0o600)}, "key file"},
		{Options{CredentialsPath: file("locked", key, 0o400)}, "key file"},
		{Options{}, "application default credentials"},
	} {
		_, way, err := c.o.clientOptions()
		if err != nil || way != c.want {
			t.Errorf("way = %s, error = %v, want %s", way, err, c.want)
		}
	}
	// A key that is none is refused when it is first used, by its setting.
	_, err := Open(t.Context(), Options{ProjectID: "p", InstanceID: "i", CredentialsPath: file("bad", key, 0o600), MetricsProvider: bt.NoopMetricsProvider{}})
	if err == nil || !strings.Contains(err.Error(), "credentials_path") || strings.Contains(err.Error(), secret) {
		t.Errorf("error = %v", err)
	}
}

func (s *server) tables(t *testing.T, instance string) []string {
	o := s.options(clock.System{})
	opts, _, err := o.clientOptions()
	if err != nil {
		t.Fatal(err)
	}
	admin, err := bt.NewAdminClient(t.Context(), "p", instance, opts...)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	names, err := admin.Tables(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	return names
}

func TestTablesOfSpaces(t *testing.T) {
	s := newServer(t)
	o := s.options(clock.System{})
	o.DataInstanceID = "data"
	e := s.openWith(t, o, func(string) error { return nil })
	data := "t0123456789abcdef0123456789abcdef"
	long := strings.Repeat("s", kv.MaxSpaceNameSize)
	spaces := []string{"bsos", data, data + "_g80d88d5e", data + "_l80d88d5e", "t0123", "__extenddb_ttl_index__", long, "T" + data[1:]}
	for _, name := range spaces {
		if err := e.CreateSpace(t.Context(), name, kv.SpaceOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{
		"__extenddb_outbox__", "__extenddb_streams__", "__extenddb_ttl_index__", "__extenddb_txn_log__",
		data, data + "_g80d88d5e", data + "_l80d88d5e", "h_bsos", "h_t0123", "h_" + long, "h_T" + data[1:],
	}
	slices.Sort(want)
	if got := s.tables(t, "data"); !slices.Equal(got, want) {
		t.Errorf("data tables %q, want %q", got, want)
	}
	if got := s.tables(t, "i"); !slices.Equal(got, []string{"__extenddb_catalog__"}) {
		t.Errorf("catalog tables %q", got)
	}
	if n, err := e.Tables(t.Context()); err != nil || n != len(want) {
		t.Errorf("%d tables, %v", n, err)
	}
	for _, name := range []string{"__extenddb_catalog__", "__extenddb_txn_log__", "__extenddb_streams__", "__extenddb_outbox__"} {
		if err := e.CreateSpace(t.Context(), name, kv.SpaceOptions{}); !errors.Is(err, kv.ErrInvalid) {
			t.Errorf("%s: error = %v", name, err)
		}
	}
	// The next generations have tables of their own, of legal names.
	for range 3 {
		for _, name := range []string{"bsos", long} {
			if err := e.DropSpace(t.Context(), name); err != nil {
				t.Fatal(err)
			}
			if err := e.CreateSpace(t.Context(), name, kv.SpaceOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	got := s.tables(t, "data")
	if !slices.Contains(got, "h_bsos-4") || slices.Contains(got, "h_bsos") || len(got) != len(want) {
		t.Errorf("tables %q", got)
	}
	for _, name := range got {
		if len(name) > maxTableID {
			t.Errorf("table id of %d bytes", len(name))
		}
	}
}

func TestSystemPrefix(t *testing.T) {
	s := newServer(t)
	o := s.options(clock.System{})
	o.SystemPrefix = "mine_"
	e := s.openWith(t, o, func(string) error { return nil })
	if err := e.CreateSpace(t.Context(), "__extenddb_ttl_index__", kv.SpaceOptions{}); err != nil {
		t.Fatal(err)
	}
	want := []string{"mine_catalog__", "mine_outbox__", "mine_streams__", "mine_ttl_index__", "mine_txn_log__"}
	if got := s.tables(t, "i"); !slices.Equal(got, want) {
		t.Errorf("tables %q, want %q", got, want)
	}
}

func TestTooManyTables(t *testing.T) {
	s := newServer(t)
	o := s.options(clock.System{})
	o.MaxTables = 4 + 3
	e := s.openWith(t, o, func(string) error { return nil })
	for i := range 4 {
		err := e.CreateSpace(t.Context(), fmt.Sprint("s", i), kv.SpaceOptions{})
		if (i < 3) != (err == nil) || i == 3 && !errors.Is(err, ErrTooManyTables) {
			t.Errorf("space %d: %v", i, err)
		}
	}
	if err := e.CreateSpace(t.Context(), "s0", kv.SpaceOptions{}); err != nil {
		t.Errorf("existing space: %v", err)
	}
}

// The client itself looks at an environment variable. It says the same as
// EmulatorHost where somebody has handed it over, and must not get in the way.
func TestEmulatorInTheEnvironment(t *testing.T) {
	s := newServer(t)
	t.Setenv("BIGTABLE_EMULATOR_HOST", s.Addr)
	for _, host := range []string{s.Addr, ""} {
		o := s.options(clock.System{})
		o.EmulatorHost = host
		e, err := Open(t.Context(), o)
		if err != nil {
			t.Errorf("EmulatorHost %q: %v", host, err)
			continue
		}
		if _, err := e.Spaces(t.Context()); err != nil {
			t.Error(err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}
