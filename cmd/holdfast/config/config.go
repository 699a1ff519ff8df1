// Package config is the configuration of the holdfast program: one struct, one
// set of defaults, one validation.
//
// A value comes from, in rising order of precedence,
//
//	the default         Default
//	a TOML file         --config FILE, or HOLDFAST_CONFIG
//	upstream's names    SYNC_MASTER_SECRET, SYNC_SYNCSTORAGE__LIMITS__MAX_POST_BYTES, ...;
//	                    for publish and reconcile PUBSUB_SUBSCRIPTION, ...
//	the environment     HOLDFAST_ and the key in capitals, dots as underscores:
//	                    HOLDFAST_SYNC_PUBLIC_URL for sync.public_url
//	a flag              for some keys: Flags
//
// An environment variable that is empty counts as not set. Unknown keys in the
// file and unknown HOLDFAST_ names are mistakes. Load reports all mistakes of all
// sources together.
//
// To add a key, add a field to the structs below, and its default to Default;
// file, environment, flag, reference and printing follow from the field's tags:
//
//	key     name in its table; required
//	help    comment in the reference; required
//	flag    name of a command line flag, without the dashes
//	example for maps: commented lines for the reference, separated by |
package config

import (
	"net/netip"
	"path/filepath"
	"strings"
	"time"
)

// Config is everything that an operator can set. Load returns one that is valid.
type Config struct {
	DataDir     string      `key:"data_dir" flag:"data-dir" help:"Folder of everything that Holdfast keeps: rows, objects and generated secrets. Back it up as a whole."`
	Sync        Sync        `key:"sync" help:"The Firefox Sync door."`
	TokenServer TokenServer `key:"tokenserver" help:"The token server: trades the token of a Mozilla account for access to a storage."`
	Engine      Engine      `key:"engine" help:"The engine that keeps rows."`
	Store       Store       `key:"store" help:"The object store that keeps large payloads."`
	Queue       Queue       `key:"queue" help:"Delivery of queue messages."`
	Reconcile   Reconcile   `key:"reconcile" help:"The reconciler: makes objects permanent that a row points at, removes those that no row points at any more."`
	Publish     Publish     `key:"publish" help:"The publisher, holdfast publish: carries link changes from a change stream of Cloud Spanner to a Pub/Sub topic."`
	Admin       Admin       `key:"admin" help:"The operator's door: health, metrics, administration."`
	Statsd      Statsd      `key:"statsd" help:"Metrics by statsd, beside those that Prometheus reads from the admin door."`
	Log         Log         `key:"log" help:"Logging, to standard error."`
	Shutdown    Shutdown    `key:"shutdown" help:"What happens at SIGTERM or an interrupt."`
}

// Sync configures the Firefox Sync door.
type Sync struct {
	Enabled                     bool           `key:"enabled" help:"Serve Firefox Sync storage."`
	Listen                      string         `key:"listen" flag:"sync-listen" help:"Address that storage and token server listen on, as host:port. A port of 0 picks a free one."`
	PublicURL                   string         `key:"public_url" flag:"public-url" help:"URL under which browsers reach this server: scheme, host, port and, if a proxy strips one, a path. Clients sign it, so behind a proxy it must be right. Empty: whatever the request says, and http:// with the listen address for the token server."`
	TrustedProxies              []netip.Prefix `key:"trusted_proxies" help:"Addresses or networks of proxies whose Forwarded and X-Forwarded-* headers are believed when public_url is empty."`
	MasterSecret                Secret         `key:"master_secret" help:"Secret that signs tokens; token server and storage must have the same. Empty: generated once and kept in the data directory."`
	MasterSecretFile            string         `key:"master_secret_file" flag:"master-secret-file" help:"File with the master secret, in place of master_secret. One line end at its end does not count."`
	AllowAnonymousConfiguration bool           `key:"allow_anonymous_configuration" help:"Answer info/configuration without authentication, too."`
	RefuseReplays               bool           `key:"refuse_replays" help:"Refuse a changing request (PUT, POST, DELETE) whose Hawk nonce was seen before. Mozilla's server remembers no nonces; switch it off if a proxy in front repeats such requests after a lost connection."`
	MaxBodyMemory               Bytes          `key:"max_body_memory" help:"Memory for request bodies of all requests together; a request that does not fit waits or is answered 503. At least the largest max_request_bytes."`
	Backoff                     time.Duration  `key:"backoff" help:"Asks all clients to wait this long before the next sync (header X-Weave-Backoff, whole seconds). 0s: no header."`
	LBHeartbeatTTL              time.Duration  `key:"lbheartbeat_ttl" help:"After this time /__lbheartbeat__ answers 500, so that a load balancer replaces the process. 0s: never."`
	LBHeartbeatJitter           int            `key:"lbheartbeat_jitter" help:"Percent of lbheartbeat_ttl that is added at random, so that not all processes end at once."`
	Limits                      Limits         `key:"limits" help:"What clients may send. Announced by info/configuration; all limits are inclusive."`
	Quota                       Quota          `key:"quota" help:"Quota of each user; its size is sync.limits.max_quota_limit."`
	Offload                     Offload        `key:"offload" help:"Which payloads are kept in the object store instead of in rows. Keep the store configured while any payload is in it, also after a collection was taken off the list."`
	CORS                        CORS           `key:"cors" help:"Cross-origin requests of web pages."`
}

// Limits bounds what a client may send. All are inclusive.
type Limits struct {
	MaxRequestBytes       Bytes                       `key:"max_request_bytes" help:"Body of one request. At least 4 KiB above max_post_bytes, because JSON quotes payloads."`
	MaxPostRecords        int                         `key:"max_post_records" help:"Records of one POST."`
	MaxPostBytes          Bytes                       `key:"max_post_bytes" help:"Payload bytes of one POST."`
	MaxRecordPayloadBytes Bytes                       `key:"max_record_payload_bytes" help:"Payload bytes of one record. A row cannot hold more than about 10 MiB; collections in sync.offload.collections may have more."`
	MaxTotalRecords       int                         `key:"max_total_records" help:"Records of one batch."`
	MaxTotalBytes         Bytes                       `key:"max_total_bytes" help:"Payload bytes of one batch."`
	MaxQuotaLimit         Bytes                       `key:"max_quota_limit" help:"Quota of one user in bytes; counts only if sync.quota says so."`
	Collections           map[string]CollectionLimits `key:"collections" help:"Other limits for single collections: a table for each, with max_record_payload_bytes, max_post_bytes and max_request_bytes or some of them. In the environment as JSON." example:"[sync.limits.collections.history]|max_record_payload_bytes = \"20MiB\"|max_post_bytes = \"25MiB\"|max_request_bytes = \"26MiB\""`
}

// CollectionLimits overrides Limits for one collection. Zero: not overridden.
type CollectionLimits struct {
	MaxRecordPayloadBytes Bytes `key:"max_record_payload_bytes" json:"max_record_payload_bytes,omitzero"`
	MaxPostBytes          Bytes `key:"max_post_bytes" json:"max_post_bytes,omitzero"`
	MaxRequestBytes       Bytes `key:"max_request_bytes" json:"max_request_bytes,omitzero"`
}

// Quota says what is done with sync.limits.max_quota_limit.
type Quota struct {
	Enabled  bool `key:"enabled" help:"Count what users store and report it."`
	Enforced bool `key:"enforced" help:"Refuse writes of a user who has reached the quota. Needs enabled."`
}

// Offload says which payloads go to the object store.
type Offload struct {
	Collections    []string `key:"collections" flag:"offload-collections" help:"Names of collections, exactly as clients write them. Empty: everything stays in rows."`
	MinBytes       Bytes    `key:"min_bytes" help:"Smaller payloads stay in rows."`
	MaxConcurrency int      `key:"max_concurrency" help:"Transfers to or from the object store that one request makes at a time."`
}

// CORS configures the answers to cross-origin requests.
type CORS struct {
	AllowedOrigin string        `key:"allowed_origin" help:"Origin that may read answers; * is any."`
	MaxAge        time.Duration `key:"max_age" help:"How long a browser may remember the permission."`
}

// The ways in which the token server checks who somebody is.
const (
	ModeAccounts = "accounts"
	ModeOffline  = "offline"
)

// TokenServer configures the token server.
type TokenServer struct {
	Enabled                 bool          `key:"enabled" help:"Serve /1.0/sync/1.5 on the address of the Sync door."`
	Mode                    string        `key:"mode" help:"\"accounts\": believe tokens that Mozilla accounts (or the server at oauth_server_url) has issued. \"offline\": there is no account server; believe only tokens that the operator has minted with the master secret."`
	TokenDuration           time.Duration `key:"token_duration" help:"Life of a storage token, whole seconds. Clients renew it after four fifths of that."`
	AllowNewUsers           bool          `key:"allow_new_users" help:"Let accounts in that have not been here before."`
	FxAEmailDomain          string        `key:"fxa_email_domain" help:"Domain that makes the user's name here out of the account id."`
	OAuthServerURL          string        `key:"oauth_server_url" help:"The account server that verifies OAuth tokens."`
	OAuthRequestTimeout     time.Duration `key:"oauth_request_timeout" help:"How long to wait for the account server."`
	MetricsHashSecret       Secret        `key:"metrics_hash_secret" help:"Secret that makes anonymous user ids for telemetry. Empty: generated once and kept in the data directory."`
	NodeType                string        `key:"node_type" help:"Kind of storage that clients report in their telemetry: mysql, postgres or spanner. Has no other effect."`
	NodeCapacityReleaseRate float64       `key:"node_capacity_release_rate" help:"Share of a node's capacity that is opened when all nodes are full."`
	InitNodeURL             string        `key:"init_node_url" help:"Storage node to add at start if it is not there yet. Empty: this server, by sync.public_url."`
	InitNodeCapacity        int           `key:"init_node_capacity" help:"Users that the node added at start can take."`
	PrimaryJWK              JWK           `key:"primary_jwk" help:"Public key of the account server (RSA, as a JWK). If neither key is given, accounts mode fetches them from oauth_server_url."`
	SecondaryJWK            JWK           `key:"secondary_jwk" help:"A second key, for the time in which the account server changes keys."`
	Webhook                 Webhook       `key:"webhook" help:"Events that the account server sends: deleted accounts, changed passwords."`
}

// JWK is the public RSA key of an account server, field by field.
type JWK struct {
	Kty       string `key:"kty" help:"Type of the key: RSA. Empty: there is no such key."`
	Alg       string `key:"alg" help:"Algorithm: RS256."`
	Kid       string `key:"kid" help:"Id of the key."`
	CreatedAt int    `key:"fxa_created_at" help:"When the key was made, in seconds since 1970. For information only."`
	Use       string `key:"use" help:"Use of the key: sig."`
	N         string `key:"n" help:"Modulus, in unpadded base64url."`
	E         string `key:"e" help:"Exponent, in unpadded base64url."`
}

// Webhook configures the receiver of account events.
type Webhook struct {
	Enabled     bool   `key:"enabled" help:"Serve /1.0/webhooks/fxa/events."`
	MetricsOnly bool   `key:"metrics_only" help:"Count events without acting on them."`
	ClientID    string `key:"client_id" help:"Audience that an event must name: the client id under which this server is registered."`
	Issuer      string `key:"issuer" help:"Issuer that an event must name."`
}

// Queue configures delivery. After the k-th lease that ended without an
// acknowledgement a message waits for BackoffFirst·2^(k-1), at most BackoffMax;
// once it is older than BackoffLate it waits for BackoffLate each time.
type Queue struct {
	Lease        time.Duration `key:"lease" help:"How long a receiver has for a message before others get it; it can renew."`
	BackoffFirst time.Duration `key:"backoff_first" help:"Wait after the first lease that ended without an acknowledgement; doubles with each further one."`
	BackoffMax   time.Duration `key:"backoff_max" help:"Longest such wait while the message is younger than backoff_late."`
	BackoffLate  time.Duration `key:"backoff_late" help:"Age from which on a message is delivered only once per this time."`
}

// Reconcile configures the reconciler.
type Reconcile struct {
	Enabled               bool          `key:"enabled" help:"Run the reconciler in this process. Without one, objects stay uncommitted and disappear after 30 days."`
	Concurrency           int           `key:"concurrency" help:"Change records worked on at a time."`
	Lease                 time.Duration `key:"lease" help:"Time for one change record; renewed while working."`
	MaxAttempts           int           `key:"max_attempts" help:"Attempts before a change record goes to the dead letters."`
	DeleteDelay           time.Duration `key:"delete_delay" help:"Wait before an object is removed that no row points at any more."`
	RequireTransactionTag bool          `key:"require_transaction_tag" help:"Do not delete on the removal of a staged row whose record carries no transaction tag. For pipelines that may lose the tag."`
	PubSub                PubSub        `key:"pubsub" help:"holdfast reconcile on a Pub/Sub subscription and a bucket, in place of the data directory's queue and store."`
}

// Admin configures the operator's door.
type Admin struct {
	Enabled bool     `key:"enabled" help:"Serve the operator's door."`
	Listen  string   `key:"listen" flag:"admin-listen" help:"Its address, as host:port. Health, version and metrics need no token: do not open it to the world."`
	Hosts   []string `key:"hosts" help:"DNS names under which it may be asked, beside localhost and IP addresses. Others are refused, so that no web page can reach it under a name of its own."`
	Token   Secret   `key:"token" help:"Bearer token for everything else, at least 16 bytes. Empty: generated once and kept in the data directory."`
}

// Statsd configures metrics by statsd.
type Statsd struct {
	Enabled bool   `key:"enabled" help:"Send metrics to a statsd server that understands tags."`
	Address string `key:"address" help:"Its address, as host:port (UDP)."`
}

// Log configures logging.
type Log struct {
	Level  string `key:"level" flag:"log-level" help:"debug, info, warn or error."`
	Format string `key:"format" flag:"log-format" help:"text or json."`
}

// Shutdown configures the end of the process.
type Shutdown struct {
	Timeout time.Duration `key:"timeout" help:"How long requests and workers may take to finish before they are cut off."`
}

// Default returns the configuration of a server that nobody has configured.
func Default() *Config {
	return &Config{
		DataDir: "./holdfast-data",
		Sync: Sync{
			Enabled:           true,
			Listen:            "127.0.0.1:8000",
			RefuseReplays:     true,
			MaxBodyMemory:     256 << 20,
			LBHeartbeatJitter: 25,
			Limits: Limits{
				MaxRequestBytes:       2_625_536,
				MaxPostRecords:        100,
				MaxPostBytes:          2_621_440,
				MaxRecordPayloadBytes: 2_621_440,
				MaxTotalRecords:       10_000,
				MaxTotalBytes:         262_144_000,
				MaxQuotaLimit:         2_097_152_000,
			},
			Offload: Offload{MaxConcurrency: 4},
			CORS:    CORS{AllowedOrigin: "*", MaxAge: 1_728_000 * time.Second},
		},
		TokenServer: TokenServer{
			Enabled:                 true,
			Mode:                    ModeAccounts,
			TokenDuration:           time.Hour,
			AllowNewUsers:           true,
			FxAEmailDomain:          "api.accounts.firefox.com",
			OAuthServerURL:          "https://oauth.accounts.firefox.com",
			OAuthRequestTimeout:     10 * time.Second,
			NodeType:                "spanner",
			NodeCapacityReleaseRate: 0.1,
			InitNodeCapacity:        100_000,
		},
		Engine: Engine{
			Kind: EnginePebble, CacheBytes: 24 << 20, MemTable: 8 << 20,
			Postgres: Postgres{Schema: "holdfast", PoolSize: 20},
			Spanner:  Spanner{ChangeStream: true},
			Bigtable: Bigtable{
				PoolSize: 20, SystemPrefix: "__extenddb_", TxnDeadline: 5 * time.Second, TxnRecordRetention: time.Hour,
				TombstoneRetention: 24 * time.Hour, SweeperCadence: 5 * time.Second, MaxTables: 900,
			},
		},
		Store: Store{Kind: StoreFS, LifecyclePeriod: 24 * time.Hour},
		Queue: Queue{
			Lease:        10 * time.Second,
			BackoffFirst: time.Second,
			BackoffMax:   10 * time.Minute,
			BackoffLate:  time.Hour,
		},
		Reconcile: Reconcile{Enabled: true, Concurrency: 32, Lease: time.Minute, MaxAttempts: 5, PubSub: defaultPubSub()},
		Publish:   defaultPublish(),
		Admin:     Admin{Enabled: true, Listen: "127.0.0.1:8001"},
		Statsd:    Statsd{Address: "127.0.0.1:8125"},
		Log:       Log{Level: "info", Format: "text"},
		Shutdown:  Shutdown{Timeout: 8 * time.Second},
	}
}

// EnginePath returns the folder of the rows.
func (c *Config) EnginePath() string {
	if c.Engine.Path != "" {
		return c.Engine.Path
	}
	return filepath.Join(c.DataDir, "rows")
}

// StorePath returns the folder of the objects.
func (c *Config) StorePath() string {
	if c.Store.Path != "" {
		return c.Store.Path
	}
	return filepath.Join(c.DataDir, "objects")
}

// NodeURL returns the URL of this server's storage that the token server gives
// to clients, without a slash at its end.
func (c *Config) NodeURL() string {
	url := "http://" + c.Sync.Listen
	if c.Sync.PublicURL != "" {
		url = c.Sync.PublicURL
	}
	return strings.TrimRight(url, "/")
}
