package config

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestAliasesPointAtKeysThatExist(t *testing.T) {
	keys := schemaOf(Default()).byName()
	for name, a := range aliases() {
		set := 0
		for _, s := range []string{a.key, a.seconds, a.ignored, a.refused} {
			if s != "" {
				set++
			}
		}
		if a.parse != nil {
			set++
		}
		if set != 1 {
			t.Errorf("%s: %d fields are set, want 1", name, set)
		}
		for _, k := range []string{a.key, a.seconds} {
			if _, ok := keys[k]; k != "" && !ok {
				t.Errorf("%s points at %s, which is no key", name, k)
			}
		}
		if _, ok := keys[a.seconds]; ok {
			if _, ok := keys[a.seconds].value.(*time.Duration); !ok {
				t.Errorf("%s points at %s, which is no duration", name, a.seconds)
			}
		}
	}
}

func TestADeploymentOfMozillasServerMoves(t *testing.T) {
	l := load(t, Options{Env: []string{
		"SYNC_HOST=127.0.0.2", "SYNC_PORT=8001", "HOLDFAST_ADMIN_LISTEN=127.0.0.1:0",
		"SYNC_MASTER_SECRET=a long enough secret",
		"SYNC_STATSD_HOST=127.0.0.3",
		"SYNC_CORS_ALLOWED_ORIGIN=https://example.org", "SYNC_CORS_MAX_AGE=60",
		"SYNC_SYNCSTORAGE__LIMITS__MAX_TOTAL_RECORDS=9984",
		`SYNC_SYNCSTORAGE__LIMITS__COLLECTIONS={"history":{"max_record_payload_bytes":20971520,"max_post_bytes":26214400,"max_request_bytes":26218496}}`,
		"SYNC_SYNCSTORAGE__ENABLE_QUOTA=1", "SYNC_SYNCSTORAGE__ENFORCE_QUOTA=true",
		"SYNC_SYNCSTORAGE__LBHEARTBEAT_TTL=3600", "SYNC_SYNCSTORAGE__LBHEARTBEAT_TTL_JITTER=10",
		"SYNC_SYNCSTORAGE__GCS_PAYLOAD_OFFLOAD_COLLECTIONS=history, bookmarks",
		"SYNC_TOKENSERVER__ENABLED=true", "SYNC_TOKENSERVER__TOKEN_DURATION=300",
		"SYNC_TOKENSERVER__FXA_EMAIL_DOMAIN=api-accounts.stage.mozaws.net",
		"SYNC_TOKENSERVER__FXA_OAUTH_SERVER_URL=http://127.0.0.1:6000",
		"SYNC_TOKENSERVER__FXA_OAUTH_PRIMARY_JWK__KTY=RSA", "SYNC_TOKENSERVER__FXA_OAUTH_PRIMARY_JWK__N=AQAB",
		"SYNC_TOKENSERVER__FXA_OAUTH_PRIMARY_JWK__E=AQAB", "SYNC_TOKENSERVER__FXA_OAUTH_PRIMARY_JWK__FXA_CREATED_AT=7",
		"SYNC_TOKENSERVER__FXA_WEBHOOK_ENABLED=true", "SYNC_TOKENSERVER__FXA_WEBHOOK_SET_CLIENT_ID=c",
		"SYNC_TOKENSERVER__FXA_WEBHOOK_SET_ISSUER=https://accounts.example.org",
	}})
	want := Default()
	want.Sync.Listen = "127.0.0.2:8001"
	want.Admin.Listen = "127.0.0.1:0"
	want.Sync.MasterSecret = "a long enough secret"
	want.Statsd = Statsd{Enabled: true, Address: "127.0.0.3:8125"}
	want.Sync.CORS = CORS{AllowedOrigin: "https://example.org", MaxAge: time.Minute}
	want.Sync.Limits.MaxTotalRecords = 9984
	want.Sync.Limits.Collections = map[string]CollectionLimits{"history": {20971520, 26214400, 26218496}}
	want.Sync.Quota = Quota{Enabled: true, Enforced: true}
	want.Sync.LBHeartbeatTTL, want.Sync.LBHeartbeatJitter = time.Hour, 10
	want.Sync.Offload.Collections = []string{"history", "bookmarks"}
	want.TokenServer.TokenDuration = 5 * time.Minute
	want.TokenServer.FxAEmailDomain = "api-accounts.stage.mozaws.net"
	want.TokenServer.OAuthServerURL = "http://127.0.0.1:6000"
	want.TokenServer.PrimaryJWK = JWK{Kty: "RSA", N: "AQAB", E: "AQAB", CreatedAt: 7}
	want.TokenServer.Webhook = Webhook{Enabled: true, ClientID: "c", Issuer: "https://accounts.example.org"}
	if d := cmp.Diff(want, l.Config, sameConfig); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if len(l.Warnings) > 0 {
		t.Errorf("warnings %q", l.Warnings)
	}
}

func TestAliasesWithoutMeaningAreReported(t *testing.T) {
	l := load(t, Options{Env: []string{
		"SYNC_HUMAN_LOGS=1", "SYNC_SYNCSTORAGE__STATSD_LABEL=x", "SYNC_TOKENSERVER__RUN_MIGRATIONS=true",
		"SYNC_SYNCSTORAGE__ENABLE_QOUTA=1", "SYNC_SERVER_URL=http://x", "SYNCTHING=1",
	}})
	want := []string{
		"SYNC_HUMAN_LOGS is ignored: see log.format",
		"SYNC_SYNCSTORAGE__ENABLE_QOUTA is ignored: unknown; did you mean SYNC_SYNCSTORAGE__ENABLE_QUOTA?",
		"SYNC_SYNCSTORAGE__STATSD_LABEL is ignored: the names of metrics are fixed",
		"SYNC_TOKENSERVER__RUN_MIGRATIONS is ignored: the engine takes care of its schema",
	}
	if d := cmp.Diff(want, l.Warnings); d != "" {
		t.Errorf("warnings (-want +got):\n%s", d)
	}
}

func TestAliasesThatAskForTheImpossibleAreRefused(t *testing.T) {
	for _, v := range []string{
		"SYNC_TOKENSERVER__DATABASE_URL=mysql://user:hunter2@host/db",
		"SYNC_SYNCSTORAGE__DATABASE_URL=mysql://user:hunter2@host/db",
		"SYNC_SYNCSTORAGE__DATABASE_URL=spanner://projects/p/instances/i",
		"SYNC_SYNCSTORAGE__DATABASE_URL=spanner://projects/p/instances/i/databases/d/e",
		"SYNC_SYNCSTORAGE__DATABASE_URL=/var/lib/hunter2",
	} {
		name, value, _ := strings.Cut(v, "=")
		_, err := Load(Options{Env: []string{v}})
		wantError(t, err, name+": ")
		if err != nil && strings.Contains(err.Error(), value) {
			t.Errorf("the error shows the value, which may hold a password: %v", err)
		}
	}
}

func TestEngineAndBucketOfMozillasServerMove(t *testing.T) {
	common := []string{"SYNC_MASTER_SECRET=a long enough secret", "HOLDFAST_SYNC_PUBLIC_URL=https://sync.example.org"}
	l := load(t, Options{Env: append(common,
		"SYNC_SYNCSTORAGE__DATABASE_URL=spanner://projects/p/instances/i/databases/d",
		"SYNC_SYNCSTORAGE__SPANNER_EMULATOR_HOST=127.0.0.1:9010",
		"SYNC_SYNCSTORAGE__GCS_PAYLOAD_BUCKET=payloads", "SYNC_SYNCSTORAGE__GCS_ENDPOINT=http://127.0.0.1:4443",
	)})
	want := Default()
	want.Sync.MasterSecret, want.Sync.PublicURL = "a long enough secret", "https://sync.example.org"
	want.Engine.Kind = EngineSpanner
	want.Engine.Spanner = Spanner{ProjectID: "p", InstanceID: "i", DatabaseID: "d", EmulatorHost: "127.0.0.1:9010", ChangeStream: true}
	want.Store.Kind = StoreGCS
	want.Store.GCS = GCS{Bucket: "payloads", Endpoint: "http://127.0.0.1:4443"}
	if d := cmp.Diff(want, l.Config, sameConfig); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	const url = "postgres://user:hunter2@/db"
	l = load(t, Options{Env: append(common,
		"SYNC_SYNCSTORAGE__DATABASE_URL="+url, "SYNC_SYNCSTORAGE__DATABASE_POOL_MAX_SIZE=7", "HOLDFAST_STORE_PATH=/objects",
	)})
	if e := l.Engine; e.Kind != EnginePostgres || string(e.Postgres.URL) != url || e.Postgres.PoolSize != 7 {
		t.Errorf("engine %q with a pool of %d", e.Kind, e.Postgres.PoolSize)
	}
}

func TestBadValuesOfAliasesNameTheVariable(t *testing.T) {
	for v, want := range map[string]string{
		"SYNC_TOKENSERVER__TOKEN_DURATION=long":                 `tokenserver.token_duration (SYNC_TOKENSERVER__TOKEN_DURATION): "longs" is not a duration`,
		"SYNC_PORT=http":                                        "sync.listen: ",
		"SYNC_SYNCSTORAGE__GCS_PAYLOAD_MAX_CONCURRENCY=0":       "sync.offload.max_concurrency: ",
		"SYNC_SYNCSTORAGE__LIMITS__COLLECTIONS={'a':{}}":        "sync.limits.collections (SYNC_SYNCSTORAGE__LIMITS__COLLECTIONS): not JSON",
		"SYNC_SYNCSTORAGE__GCS_PAYLOAD_OFFLOAD_COLLECTIONS=a b": "sync.offload.collections: ",
	} {
		_, err := Load(Options{Env: []string{v}})
		wantError(t, err, want)
	}
}

func TestIPv6HostIsBracketed(t *testing.T) {
	for _, host := range []string{"::1", "[::1]"} {
		if l := load(t, Options{Env: []string{"SYNC_HOST=" + host}}); l.Sync.Listen != "[::1]:8000" {
			t.Errorf("SYNC_HOST=%s gives %s", host, l.Sync.Listen)
		}
	}
}
