package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// jwk is a key that is complete, as TOML below the table of the key.
const jwk = "kty = 'RSA'\nn = 'AQAB'\ne = 'AQAB'\n"

// What an engine for several processes needs, and enough to choose one.
const (
	shared   = "sync.master_secret = '0123456789abcdef'\nsync.public_url = 'https://example.org'\nstore.path = '/x'\n"
	postgres = "engine.kind = 'postgres'\nengine.postgres.url = 'dbname=holdfast'\n"
	bigtable = "engine.kind = 'bigtable'\nengine.bigtable.project_id = 'p'\nengine.bigtable.instance_id = 'i'\n"
)

// TestEveryMistakeNamesItsKey lists a file for every check, and the line that it
// must give; nothing else may be reported.
func TestEveryMistakeNamesItsKey(t *testing.T) {
	cases := []struct{ text, want string }{
		{"data_dir = ''", "data_dir: is empty"},
		{"sync.listen = '8000'", `sync.listen: "8000" is not an address such as 127.0.0.1:8000`},
		{"sync.listen = '127.0.0.1:80000'", "sync.listen: "},
		{"sync.listen = '127.0.0.1:http'", "sync.listen: "},
		{"sync.listen = '0.0.0.0:8000'", "sync.public_url: must be set when sync.listen (0.0.0.0:8000) is on all addresses"},
		{"sync.listen = ':8000'", "sync.public_url: must be set"},
		{"sync.listen = '[::]:8000'", "sync.public_url: must be set"},
		{"sync.public_url = 'sync.example.org'", "sync.public_url: "},
		{"sync.public_url = 'ftp://example.org'", "sync.public_url: "},
		{"sync.public_url = 'https://example.org/?q'", "sync.public_url: "},
		{"sync.master_secret = '0123456789abcdef'\nsync.master_secret_file = '/x'", "sync.master_secret_file: is set beside sync.master_secret"},
		{"sync.backoff = '1500ms'", "sync.backoff: 1.5s is not a whole number of seconds"},
		{"sync.backoff = '-1s'", "sync.backoff: -1s is too small, it must be at least 0s"},
		{"sync.lbheartbeat_ttl = '-1s'", "sync.lbheartbeat_ttl: "},
		{"sync.lbheartbeat_jitter = 101", "sync.lbheartbeat_jitter: 101 is not a percentage"},
		{"sync.lbheartbeat_jitter = -1", "sync.lbheartbeat_jitter: "},
		{"sync.quota.enforced = true", "sync.quota.enforced: needs sync.quota.enabled"},
		{"sync.offload.collections = ['a b']", `sync.offload.collections: "a b" cannot be the name of a collection`},
		{"sync.offload.min_bytes = -1", "sync.offload.min_bytes: "},
		{"sync.offload.max_concurrency = 0", "sync.offload.max_concurrency: 0 is too small, it must be at least 1"},
		{"sync.cors.allowed_origin = 'example.org'", "sync.cors.allowed_origin: "},
		{"sync.cors.allowed_origin = 'https://example.org/'", "sync.cors.allowed_origin: "},
		{"sync.cors.max_age = '1ms'", "sync.cors.max_age: "},
		{"sync.cors.max_age = '-1s'", "sync.cors.max_age: "},
		{"sync.max_body_memory = '1MiB'", "sync.max_body_memory: 1MiB is too small, it must be at least 2564KiB"},
		{"sync.limits.max_post_records = 0", "sync.limits.max_post_records: 0 is too small, it must be above 0"},
		{"sync.limits.max_post_bytes = -1", "sync.limits.max_post_bytes: "},
		{"sync.limits.max_record_payload_bytes = 0", "sync.limits.max_record_payload_bytes: "},
		{"sync.limits.max_record_payload_bytes = '3MiB'", "sync.limits.max_record_payload_bytes: 3MiB is above max_post_bytes (2560KiB)"},
		{"sync.limits.max_request_bytes = 0", "sync.limits.max_request_bytes: "},
		{"sync.limits.max_request_bytes = 2_625_535", "sync.limits.max_request_bytes: 2625535 is too small, it must be at least 4KiB above"},
		{"sync.limits.max_total_records = 99", "sync.limits.max_total_records: 99 is too small, it must be at least 100"},
		{"sync.limits.max_total_bytes = '1MiB'", "sync.limits.max_total_bytes: "},
		{"sync.limits.max_quota_limit = 0", "sync.limits.max_quota_limit: "},
		{"sync.limits.collections.'a%d'.max_post_bytes = '2MiB'\nsync.limits.collections.'a%d'.max_record_payload_bytes = '2MiB'",
			`sync.limits.collections: "a%d" cannot be the name`},
		{"sync.limits.collections.a.max_post_bytes = '2MiB'", "sync.limits.collections.a.max_record_payload_bytes: 2560KiB is above max_post_bytes (2MiB)"},
		{"sync.limits.collections.a.max_post_bytes = '3MiB'", "sync.limits.collections.a.max_request_bytes: 2564KiB is too small"},
		{"[sync.limits.collections.a]\nmax_record_payload_bytes = '20MiB'\nmax_post_bytes = '25MiB'\nmax_request_bytes = '26MiB'",
			"sync.limits.collections.a.max_record_payload_bytes: 20MiB does not fit into a row (10MiB with its other fields)"},
		{"[sync.limits.collections.a]\nmax_record_payload_bytes = '10177KiB'\nmax_post_bytes = '10MiB'\nmax_request_bytes = '11MiB'",
			"sync.limits.collections.a.max_record_payload_bytes: 10177KiB does not fit into a row"},
		{"[sync]\nmax_body_memory = '25MiB'\noffload.collections = ['a']\n[sync.limits.collections.a]\nmax_post_bytes = '25MiB'\nmax_request_bytes = '26MiB'",
			"sync.max_body_memory: 25MiB is too small, it must be at least 26MiB"},
		{"tokenserver.mode = 'open'", `tokenserver.mode: "open" is unknown; possible: accounts, offline`},
		{"[tokenserver]\nmode = 'offline'\nwebhook = {enabled = true, client_id = 'c', issuer = 'i'}", "tokenserver.webhook.enabled: needs an account server"},
		{"tokenserver.token_duration = '0s'", "tokenserver.token_duration: "},
		{"tokenserver.token_duration = '1500ms'", "tokenserver.token_duration: "},
		{"tokenserver.node_type = 'sqlite'", "tokenserver.node_type: "},
		{"tokenserver.node_capacity_release_rate = 0", "tokenserver.node_capacity_release_rate: "},
		{"tokenserver.node_capacity_release_rate = 1.1", "tokenserver.node_capacity_release_rate: "},
		{"tokenserver.init_node_url = 'node'", "tokenserver.init_node_url: "},
		{"tokenserver.init_node_capacity = 0", "tokenserver.init_node_capacity: "},
		{"tokenserver.fxa_email_domain = ''", "tokenserver.fxa_email_domain: "},
		{"tokenserver.fxa_email_domain = 'a@b'", "tokenserver.fxa_email_domain: "},
		{"tokenserver.oauth_server_url = ''", "tokenserver.oauth_server_url: "},
		{"tokenserver.oauth_server_url = 'https://u:p@example.org'", "tokenserver.oauth_server_url: is not a URL such as"},
		{"tokenserver.oauth_request_timeout = '0s'", "tokenserver.oauth_request_timeout: "},
		{"tokenserver.webhook.enabled = true\ntokenserver.webhook.issuer = 'i'", "tokenserver.webhook.client_id: is empty"},
		{"tokenserver.webhook.enabled = true\ntokenserver.webhook.client_id = 'c'", "tokenserver.webhook.issuer: is empty"},
		{"[tokenserver.primary_jwk]\nkid = 'k'", "tokenserver.primary_jwk.kty: is empty, but other fields"},
		{"[tokenserver.primary_jwk]\n" + strings.Replace(jwk, "RSA", "EC", 1), "tokenserver.primary_jwk.kty: "},
		{"[tokenserver.primary_jwk]\nalg = 'HS256'\n" + jwk, "tokenserver.primary_jwk.alg: "},
		{"[tokenserver.primary_jwk]\nuse = 'enc'\n" + jwk, "tokenserver.primary_jwk.use: "},
		{"[tokenserver.primary_jwk]\nkty = 'RSA'\ne = 'AQAB'", "tokenserver.primary_jwk.n: "},
		{"[tokenserver.primary_jwk]\nkty = 'RSA'\nn = 'AQAB'\ne = '='", "tokenserver.primary_jwk.e: "},
		{"[tokenserver.secondary_jwk]\n" + jwk, "tokenserver.primary_jwk.kty: is empty, but there is a secondary_jwk"},
		{"engine.kind = 'sqlite'", `engine.kind: "sqlite" is unknown; possible: pebble, postgres, spanner, bigtable`},
		{shared + "engine.kind = 'postgres'", `engine.postgres.url: is empty, and engine.kind = "postgres" needs it`},
		{shared + postgres + "engine.postgres.schema = 'a-b'", `engine.postgres.schema: "a-b" is not a name`},
		{shared + postgres + "engine.postgres.pool_size = 1", "engine.postgres.pool_size: "},
		{shared + "engine.kind = 'spanner'\nengine.spanner.instance_id = 'i'\nengine.spanner.database_id = 'd'", "engine.spanner.project_id: is empty"},
		{shared + "engine.kind = 'spanner'\nengine.spanner.project_id = 'p'\nengine.spanner.database_id = 'd'", "engine.spanner.instance_id: is empty"},
		{shared + "engine.kind = 'spanner'\nengine.spanner.project_id = 'p'\nengine.spanner.instance_id = 'i'", "engine.spanner.database_id: is empty"},
		{shared + "engine.kind = 'bigtable'\nengine.bigtable.instance_id = 'i'", "engine.bigtable.project_id: is empty"},
		{shared + "engine.kind = 'bigtable'\nengine.bigtable.project_id = 'p'", "engine.bigtable.instance_id: is empty"},
		{shared + bigtable + "engine.bigtable.pool_size = 0", "engine.bigtable.pool_size: "},
		{shared + bigtable + "engine.bigtable.system_prefix = 'a b'", "engine.bigtable.system_prefix: "},
		{shared + bigtable + "engine.bigtable.txn_deadline = '1ms'", "engine.bigtable.txn_deadline: "},
		{shared + bigtable + "engine.bigtable.txn_record_retention = '1m'", "engine.bigtable.txn_record_retention: "},
		{shared + bigtable + "engine.bigtable.tombstone_retention = '1m'", "engine.bigtable.tombstone_retention: "},
		{shared + bigtable + "engine.bigtable.sweeper_cadence = '0s'", "engine.bigtable.sweeper_cadence: "},
		{shared + bigtable + "engine.bigtable.max_tables_per_instance = 0", "engine.bigtable.max_tables_per_instance: "},
		{"sync.public_url = 'https://example.org'\nstore.path = '/x'\n" + postgres, "sync.master_secret: is empty, and with engine.kind"},
		{"sync.master_secret = '0123456789abcdef'\nstore.path = '/x'\n" + postgres, "sync.public_url: is empty, and with engine.kind"},
		{"sync.master_secret = '0123456789abcdef'\nsync.public_url = 'https://example.org'\n" + postgres, "store.path: is empty, and with engine.kind"},
		{"engine.cache_bytes = 1000", "engine.cache_bytes: "},
		{"store.kind = 'azure'", `store.kind: "azure" is unknown; possible: fs, gcs, s3`},
		{"store.kind = 'gcs'", `store.gcs.bucket: is empty, and store.kind = "gcs" needs it`},
		{"store.kind = 'gcs'\nstore.gcs.bucket = 'b'\nstore.gcs.endpoint = 'x'", "store.gcs.endpoint: is not a URL"},
		{"store.kind = 's3'", `store.s3.bucket: is empty, and store.kind = "s3" needs it`},
		{"store.kind = 's3'\nstore.s3.bucket = 'b'\nstore.s3.endpoint = 'x'", "store.s3.endpoint: is not a URL"},
		{"store.kind = 's3'\nstore.s3.bucket = 'b'\nstore.s3.access_key_id = 'x'", "store.s3.access_key_id: and secret_access_key go together"},
		{"store.lifecycle_period = '1s'", "store.lifecycle_period: "},
		{"engine.path = '/x'\nstore.path = '/x'", "store.path: is the same as engine.path"},
		{"queue.lease = '0s'", "queue.lease: "},
		{"queue.backoff_first = '0s'", "queue.backoff_first: "},
		{"queue.backoff_max = '500ms'", "queue.backoff_max: 500ms is too small, it must be at least 1s"},
		{"queue.backoff_late = '1m'", "queue.backoff_late: "},
		{"reconcile.concurrency = 0", "reconcile.concurrency: "},
		{"reconcile.lease = '1ms'", "reconcile.lease: "},
		{"reconcile.max_attempts = 0", "reconcile.max_attempts: "},
		{"reconcile.delete_delay = '-1s'", "reconcile.delete_delay: "},
		{"admin.listen = 'x'", "admin.listen: "},
		{"admin.listen = '127.0.0.1:8000'", "admin.listen: is the same as sync.listen"},
		{"admin.hosts = ['*.example.org']", "admin.hosts: "},
		{"admin.token = 'short'", "admin.token: is shorter than 16 bytes"},
		{"statsd.enabled = true\nstatsd.address = 'x'", "statsd.address: "},
		{"log.level = 'loud'", "log.level: "},
		{"log.format = 'xml'", "log.format: "},
		{"shutdown.timeout = '-1s'", "shutdown.timeout: "},
	}
	keys := schemaOf(Default()).byName()
	covered := map[string]bool{}
	for _, c := range cases {
		_, err := Load(Options{File: file(t, c.text)})
		if err == nil {
			t.Errorf("%s: no error, want %q", c.text, c.want)
			continue
		}
		if got := err.Error(); !strings.HasPrefix(got, c.want) || strings.Contains(got, "\n") {
			t.Errorf("%s: error %q, want only %q", c.text, got, c.want)
		}
		name, _, _ := strings.Cut(err.Error(), ":")
		covered[name] = true
		if _, ok := keys[name]; !ok && !strings.HasPrefix(name, "sync.limits.collections.a.") {
			t.Errorf("%s: the error names no key: %v", c.text, err)
		}
	}
	if len(covered) < 50 {
		t.Errorf("only %d keys are covered", len(covered))
	}
}

func TestWhatIsInOrderOrSwitchedOffPasses(t *testing.T) {
	for _, text := range []string{
		"[sync.limits.collections.a]\nmax_record_payload_bytes = '10176KiB'\nmax_post_bytes = '10MiB'\nmax_request_bytes = '11MiB'",
		"tokenserver.enabled = false\ntokenserver.oauth_server_url = ''\nsync.listen = ':8000'",
		"admin.enabled = false\nadmin.listen = ''",
		"statsd.address = ''",
		"tokenserver.mode = 'offline'\ntokenserver.oauth_server_url = ''",
		"[tokenserver.primary_jwk]\n" + jwk,
		"sync.listen = '127.0.0.1:0'\nadmin.listen = '127.0.0.1:0'",
		"sync.listen = ':8000'\nsync.public_url = 'https://sync.example.org/prefix/'",
		shared + postgres, shared + bigtable,
		shared + "[engine]\nkind = 'spanner'\nspanner = {project_id = 'p', instance_id = 'i', database_id = 'd'}",
		"store = {kind = 's3', s3 = {bucket = 'b', access_key_id = 'a', secret_access_key = 's'}}",
		"sync.listen = ':8000'\ntokenserver.init_node_url = 'https://sync.example.org'",
	} {
		load(t, Options{File: file(t, text)})
	}
}

func TestWarnings(t *testing.T) {
	cases := []struct{ text, want string }{
		{"sync.master_secret = 'secret0'", "sync.master_secret has only 7 bytes"},
		{"tokenserver.metrics_hash_secret = 'secret'", "tokenserver.metrics_hash_secret has only 6 bytes"},
		{"admin.listen = ':8001'", "admin.listen (:8001) can be reached from other machines"},
		{"admin.listen = '10.0.0.1:8001'", "admin.listen (10.0.0.1:8001) can be reached"},
		{"sync.public_url = 'http://sync.example.org/x'", "sync.public_url is not https"},
		{"tokenserver.mode = 'offline'", "tokenserver.mode is offline"},
		{"sync.trusted_proxies = ['0.0.0.0/0']", "sync.trusted_proxies contains 0.0.0.0/0"},
		{"sync.trusted_proxies = ['10.0.0.1']\nsync.public_url = 'https://example.org'", "sync.trusted_proxies has no effect"},
		{"sync.offload.collections = ['tabs', 'history']\nreconcile.enabled = false", "payloads of tabs, history disappear after 30 days"},
	}
	for _, c := range cases {
		l := load(t, Options{File: file(t, c.text)})
		if len(l.Warnings) != 1 || !strings.Contains(l.Warnings[0], c.want) {
			t.Errorf("%s: warnings %q, want one with %q", c.text, l.Warnings, c.want)
		}
	}
	for _, quiet := range []string{
		"admin.listen = 'localhost:8001'", "admin.listen = '[::1]:8001'",
		"sync.public_url = 'http://localhost:8000/x'", "sync.public_url = 'http://[::1]'", "sync.public_url = 'https://example.org'",
	} {
		if l := load(t, Options{File: file(t, quiet)}); len(l.Warnings) > 0 {
			t.Errorf("%s: warnings %q", quiet, l.Warnings)
		}
	}
}

func TestLimitsOfACollectionFallBackOneByOne(t *testing.T) {
	l := Default().Sync.Limits
	l.Collections = map[string]CollectionLimits{"history": {MaxPostBytes: 7, MaxRequestBytes: 1 << 30}}
	if r, p, q := l.of("history"); r != l.MaxRecordPayloadBytes || p != 7 || q != 1<<30 {
		t.Errorf("history: %d %d %d", r, p, q)
	}
	if r, p, q := l.of("tabs"); r != l.MaxRecordPayloadBytes || p != l.MaxPostBytes || q != l.MaxRequestBytes {
		t.Errorf("tabs: %d %d %d", r, p, q)
	}
	if got := l.largestRequest(); got != 1<<30 {
		t.Errorf("largestRequest = %d", got)
	}
}

func TestConfiguredKeysAreJWKs(t *testing.T) {
	key := "\nkty = 'RSA'\nn = 'AQAB'\ne = 'AQAB'\nalg = 'RS256'\nuse = 'sig'\nfxa_created_at = 7\nkid = "
	l := load(t, Options{File: file(t, "[tokenserver.primary_jwk]"+key+"'a'\n[tokenserver.secondary_jwk]"+key+"'b'")})
	got, err := l.TokenServer.Keys()
	want := []string{
		`{"kty":"RSA","alg":"RS256","kid":"a","use":"sig","n":"AQAB","e":"AQAB"}`,
		`{"kty":"RSA","alg":"RS256","kid":"b","use":"sig","n":"AQAB","e":"AQAB"}`,
	}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("Keys: %v (-want +got):\n%s", err, d)
	}
	if none, err := Default().TokenServer.Keys(); len(none) != 0 || err != nil {
		t.Errorf("default keys %q, %v", none, err)
	}
}

func TestDerivedPlaces(t *testing.T) {
	c := Default()
	c.DataDir = "/d"
	if c.EnginePath() != "/d/rows" || c.StorePath() != "/d/objects" || c.NodeURL() != "http://127.0.0.1:8000" {
		t.Errorf("%s %s %s", c.EnginePath(), c.StorePath(), c.NodeURL())
	}
	c.Engine.Path, c.Store.Path, c.Sync.PublicURL = "/e", "/s", "https://example.org/x/"
	if c.EnginePath() != "/e" || c.StorePath() != "/s" || c.NodeURL() != "https://example.org/x" {
		t.Errorf("%s %s %s", c.EnginePath(), c.StorePath(), c.NodeURL())
	}
}
