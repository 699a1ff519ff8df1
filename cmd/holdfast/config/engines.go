package config

import (
	"fmt"
	"regexp"
	"time"
)

// The engines that rows can be kept in.
const (
	EnginePebble   = "pebble"
	EnginePostgres = "postgres"
	EngineSpanner  = "spanner"
	EngineBigtable = "bigtable"
)

// Engine configures the engine that keeps rows.
type Engine struct {
	Kind       string   `key:"kind" flag:"engine" help:"pebble: embedded, one process, nothing else to run. postgres, spanner, bigtable: any number of processes on one database; see docs/engines.md."`
	Path       string   `key:"path" help:"pebble: folder of the rows. Empty: rows in the data directory."`
	CacheBytes Bytes    `key:"cache_bytes" help:"pebble: memory for rows read from disk."`
	MemTable   Bytes    `key:"memtable_bytes" help:"pebble: memory for rows that are gathered before they are written into tables; up to three times as much is in use. More of it makes many writes faster: 32 MiB is good if there is memory."`
	Postgres   Postgres `key:"postgres" help:"Rows in PostgreSQL 14 or later."`
	Spanner    Spanner  `key:"spanner" help:"Rows in Cloud Spanner."`
	Bigtable   Bigtable `key:"bigtable" help:"Rows in Cloud Bigtable."`
}

// Shared reports whether several processes may have the engine open at once.
func (e *Engine) Shared() bool {
	return e.Kind == EnginePostgres || e.Kind == EngineSpanner || e.Kind == EngineBigtable
}

// Postgres configures the engine on PostgreSQL.
type Postgres struct {
	URL       Secret `key:"url" help:"Where the database is: postgres://user:password@host:5432/database?sslmode=verify-full, or words such as host=/run/postgresql dbname=holdfast. May point at a pooler."`
	ListenURL Secret `key:"listen_url" help:"The same database without a pooler in between, for the connection that listens for wake-ups of other processes. Empty: url."`
	ReadURL   Secret `key:"read_url" help:"A hot standby of the same server, for scans of more than a page: they show no less than at the primary. Empty: everything is read from the primary."`
	Schema    string `key:"schema" help:"Schema that holds all tables. Made at the first start, if the user may."`
	PoolSize  int    `key:"pool_size" help:"Connections of one process at most."`
}

// Spanner configures the engine on Cloud Spanner.
type Spanner struct {
	ProjectID    string `key:"project_id" help:"Project of the instance."`
	InstanceID   string `key:"instance_id" help:"The instance."`
	DatabaseID   string `key:"database_id" help:"The database. It must exist; \"holdfast schema apply\" makes its tables."`
	EmulatorHost string `key:"emulator_host" help:"host:port of an emulator, without credentials. Empty: SPANNER_EMULATOR_HOST, else the service."`
	DatabaseRole string `key:"database_role" help:"Database role to work with. Empty: that of the credentials."`
	AutoSchema   bool   `key:"auto_schema" help:"Make missing tables at start. For tests and first steps: the process then needs the right to change the schema."`
	ChangeStream bool   `key:"change_stream" help:"Changes of links are read from the change stream payload_link_changes, by \"holdfast publish\" and \"holdfast reconcile\". Off: they are kept in the queue payload_link_changes in the same commit, as on the other engines, and this program's own reconciler handles them."`
}

// Bigtable configures the engine on Cloud Bigtable. Its keys are named as in the
// storage block of other DynamoDB-compatible servers on Bigtable.
type Bigtable struct {
	ProjectID          string        `key:"project_id" help:"Project of the instances."`
	InstanceID         string        `key:"instance_id" help:"Instance of the catalog."`
	DataInstanceID     string        `key:"data_instance_id" help:"Instance of everything else. Empty: instance_id."`
	CredentialsPath    string        `key:"credentials_path" help:"Key file of a service account, readable by its owner only. Empty: the application default credentials."`
	EmulatorHost       string        `key:"emulator_host" help:"host:port of an emulator, without credentials. Empty: BIGTABLE_EMULATOR_HOST, else the service."`
	PoolSize           int           `key:"pool_size" help:"Connections of one process."`
	AppProfile         string        `key:"app_profile" help:"App profile: routing to a single cluster, with single-row transactions. Empty: the default profile."`
	SystemPrefix       string        `key:"system_prefix" help:"Begin of the names of system tables. Fixed once there is data."`
	TxnDeadline        time.Duration `key:"txn_deadline" help:"After this time an unfinished transaction may be rolled back by anybody."`
	TxnRecordRetention time.Duration `key:"txn_record_retention" help:"How long records of finished transactions stay. At least 20m."`
	TombstoneRetention time.Duration `key:"tombstone_retention" help:"How long traces of deleted rows stay. At least 10m."`
	SweeperCadence     time.Duration `key:"sweeper_cadence" help:"Pause between two looks for abandoned transactions."`
	MaxTables          int           `key:"max_tables_per_instance" help:"Tables that may be made in an instance, whose own limit is 1,000."`
}

// The stores that objects can be kept in.
const (
	StoreFS  = "fs"
	StoreGCS = "gcs"
	StoreS3  = "s3"
)

// Store configures the object store.
type Store struct {
	Kind            string        `key:"kind" flag:"store" help:"fs: files in a folder. gcs: a bucket of Google Cloud Storage. s3: a bucket of S3, R2, MinIO or another store that speaks its protocol."`
	Path            string        `key:"path" help:"fs: folder of the objects. Empty: objects in the data directory."`
	LifecyclePeriod time.Duration `key:"lifecycle_period" help:"fs, s3: pause between two searches for objects that were uploaded 30 days ago and never became permanent. On gcs a rule of the bucket removes them: see \"holdfast store check\"."`
	GCS             GCS           `key:"gcs" help:"Objects in Google Cloud Storage. With STORAGE_EMULATOR_HOST in the environment, in an emulator."`
	S3              S3            `key:"s3" help:"Objects in a store that speaks the protocol of S3."`
}

// GCS configures a bucket of Google Cloud Storage.
type GCS struct {
	Bucket          string `key:"bucket" help:"The bucket. Nothing else may write into it."`
	Endpoint        string `key:"endpoint" help:"Another root of the API, for an emulator. No credentials are sent then."`
	CredentialsPath string `key:"credentials_path" help:"Key file of a service account. Empty: the application default credentials."`
}

// S3 configures a bucket of a store that speaks the protocol of S3.
type S3 struct {
	Bucket          string `key:"bucket" help:"The bucket. Nothing else may write into it."`
	Region          string `key:"region" help:"Region of the bucket; auto for R2. Empty: as the environment says (AWS_REGION)."`
	Endpoint        string `key:"endpoint" help:"URL of the store, for all but AWS."`
	PathStyle       bool   `key:"path_style" help:"Name the bucket in the path, not in the host name: MinIO and most others."`
	AccessKeyID     string `key:"access_key_id" help:"Access key. Empty: as the SDK finds credentials (environment, profile, role)."`
	SecretAccessKey Secret `key:"secret_access_key" help:"Secret of the access key."`
}

var (
	schemaPattern = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)
	prefixPattern = regexp.MustCompile(`^[_a-zA-Z0-9][-_.a-zA-Z0-9]{0,15}$`)
)

// required wants a text for what a kind needs.
func (m *mistakes) required(key, value, kind string) {
	if value == "" {
		m.add(key, "is empty, and %s needs it", kind)
	}
}

func (e *Engine) validate(m *mistakes) {
	m.oneOf("engine.kind", e.Kind, EnginePebble, EnginePostgres, EngineSpanner, EngineBigtable)
	atLeast(m, "engine.cache_bytes", e.CacheBytes, 1<<20)
	atLeast(m, "engine.memtable_bytes", e.MemTable, 1<<20)
	kind := fmt.Sprintf("engine.kind = %q", e.Kind)
	switch e.Kind {
	case EnginePostgres:
		p := &e.Postgres
		m.required("engine.postgres.url", string(p.URL), kind)
		if !schemaPattern.MatchString(p.Schema) {
			m.add("engine.postgres.schema", "%q is not a name of small letters, digits and underscores", p.Schema)
		}
		atLeast(m, "engine.postgres.pool_size", p.PoolSize, 2)
	case EngineSpanner:
		m.required("engine.spanner.project_id", e.Spanner.ProjectID, kind)
		m.required("engine.spanner.instance_id", e.Spanner.InstanceID, kind)
		m.required("engine.spanner.database_id", e.Spanner.DatabaseID, kind)
	case EngineBigtable:
		b := &e.Bigtable
		m.required("engine.bigtable.project_id", b.ProjectID, kind)
		m.required("engine.bigtable.instance_id", b.InstanceID, kind)
		atLeast(m, "engine.bigtable.pool_size", b.PoolSize, 1)
		if !prefixPattern.MatchString(b.SystemPrefix) {
			m.add("engine.bigtable.system_prefix", "%q cannot begin the name of a table", b.SystemPrefix)
		}
		atLeast(m, "engine.bigtable.txn_deadline", b.TxnDeadline, time.Second)
		atLeast(m, "engine.bigtable.txn_record_retention", b.TxnRecordRetention, 20*time.Minute)
		atLeast(m, "engine.bigtable.tombstone_retention", b.TombstoneRetention, 10*time.Minute)
		atLeast(m, "engine.bigtable.sweeper_cadence", b.SweeperCadence, time.Second)
		atLeast(m, "engine.bigtable.max_tables_per_instance", b.MaxTables, 1)
	}
}

func (s *Store) validate(m *mistakes) {
	m.oneOf("store.kind", s.Kind, StoreFS, StoreGCS, StoreS3)
	atLeast(m, "store.lifecycle_period", s.LifecyclePeriod, time.Minute)
	kind := fmt.Sprintf("store.kind = %q", s.Kind)
	switch s.Kind {
	case StoreGCS:
		m.required("store.gcs.bucket", s.GCS.Bucket, kind)
		if s.GCS.Endpoint != "" {
			m.httpURL("store.gcs.endpoint", s.GCS.Endpoint)
		}
	case StoreS3:
		m.required("store.s3.bucket", s.S3.Bucket, kind)
		if s.S3.Endpoint != "" {
			m.httpURL("store.s3.endpoint", s.S3.Endpoint)
		}
		if (s.S3.AccessKeyID == "") != (s.S3.SecretAccessKey == "") {
			m.add("store.s3.access_key_id", "and secret_access_key go together: set both or none")
		}
	}
}

// validateShared looks at what several processes on one engine need: what one
// process can keep in its data directory, all of them must be told.
func (c *Config) validateShared(m *mistakes) {
	if !c.Engine.Shared() {
		return
	}
	kind := fmt.Sprintf("engine.kind = %q", c.Engine.Kind)
	if c.Sync.MasterSecret == "" && c.Sync.MasterSecretFile == "" {
		m.add("sync.master_secret", "is empty, and with %s all processes need the same; make one with: openssl rand -hex 32", kind)
	}
	if c.TokenServer.Enabled && c.Sync.PublicURL == "" && c.TokenServer.InitNodeURL == "" {
		m.add("sync.public_url", "is empty, and with %s the token server must know under which URL clients reach the processes", kind)
	}
	if c.Store.Kind == StoreFS && c.Store.Path == "" {
		m.add("store.path", "is empty, and with %s it must name a folder that all processes share; or set store.kind to gcs or s3", kind)
	}
}
