package bigtable

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	bt "cloud.google.com/go/bigtable"
	"google.golang.org/api/option"

	"github.com/holdfast-dev/holdfast/clock"
	"github.com/holdfast-dev/holdfast/kv"
)

// Options of Open.
type Options struct {
	// ProjectID and InstanceID name the instance. Required.
	ProjectID, InstanceID string
	// DataInstanceID is the instance of all tables but the catalog. Default:
	// InstanceID.
	DataInstanceID string
	// CredentialsPath is the key file of a service account, which only its owner
	// may read. Default: Application Default Credentials.
	CredentialsPath string
	// EmulatorHost is the address of an emulator. Nothing is encrypted and no
	// credentials are used; CredentialsPath must be empty.
	EmulatorHost string
	// PoolSize is the number of connections. Default: 20, and the client may
	// open more.
	PoolSize int
	// AppProfile must route to a single cluster and allow single-row
	// transactions. Default: the instance's default profile.
	AppProfile string
	// SystemPrefix takes the place of DefaultSystemPrefix in the names of tables.
	SystemPrefix string
	// TxnDeadline is how long a transaction may take before others may abort it.
	// Default: 5 s.
	TxnDeadline time.Duration
	// TxnRecordRetention is how long decided transactions are remembered. At
	// least 20 minutes; default: 1 h.
	TxnRecordRetention time.Duration
	// TombstoneRetention is how long it is remembered that a row was deleted. At
	// least 10 minutes, and longer than clocks may differ; default: 24 h.
	TombstoneRetention time.Duration
	// SweeperCadence is the time between two looks for what crashed processes
	// left behind. Default: 5 s.
	SweeperCadence time.Duration
	// MaxTables is the number of tables from which on CreateSpace is refused.
	// Default: 900.
	MaxTables int
	// Clock decides expiry and feeds the versions. Default: the system's.
	Clock clock.Clock
	// Rand is where ids come from. Default: crypto/rand.
	Rand io.Reader
	// Logger gets warnings. Default: discard.
	Logger *slog.Logger
	// MetricsProvider is handed to the client. Default: the client's own, which
	// exports to Cloud Monitoring.
	MetricsProvider bt.MetricsProvider
	// ClientOptions are handed to the clients, behind those that follow from the
	// fields above.
	ClientOptions []option.ClientOption
}

// ErrTooManyTables says that the instance has no room for another space.
var ErrTooManyTables = errors.New("too many tables (max_tables_per_instance)")

const defaultPoolSize = 20

// Limits returns what one commit may hold.
func Limits() kv.Limits { return kv.Limits{CommitRows: 1000, CommitBytes: 16 << 20} }

// complete fills in the defaults and names what is wrong.
func (o *Options) complete() error {
	setDefault(&o.DataInstanceID, o.InstanceID)
	setDefault(&o.SystemPrefix, DefaultSystemPrefix)
	setDefault(&o.TxnDeadline, 5*time.Second)
	setDefault(&o.TxnRecordRetention, time.Hour)
	setDefault(&o.TombstoneRetention, 24*time.Hour)
	setDefault(&o.SweeperCadence, 5*time.Second)
	setDefault(&o.MaxTables, 900)
	if o.Clock == nil {
		o.Clock = clock.System{}
	}
	if o.Rand == nil {
		o.Rand = rand.Reader
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.EmulatorHost != "" && o.MetricsProvider == nil {
		o.MetricsProvider = bt.NoopMetricsProvider{}
	}
	switch {
	case o.ProjectID == "":
		return errors.New("project_id is missing")
	case o.InstanceID == "":
		return errors.New("instance_id is missing")
	case o.PoolSize < 0:
		return errors.New("pool_size is negative")
	case o.EmulatorHost != "" && o.CredentialsPath != "":
		return errors.New("credentials_path and emulator_host exclude each other: an emulator must not see a key")
	case o.TxnDeadline < callTimeout:
		return fmt.Errorf("txn_deadline_ms is below %d, the time that one call may take", callTimeout.Milliseconds())
	case o.TxnRecordRetention < 20*time.Minute:
		return errors.New("txn_record_retention_secs is below 1200")
	case o.TombstoneRetention < 10*time.Minute:
		return errors.New("tombstone_retention_secs is below 600")
	case o.SweeperCadence < 0:
		return errors.New("sweeper_cadence_secs is negative")
	case o.MaxTables < 0:
		return errors.New("max_tables_per_instance is negative")
	}
	if err := checkTableID(o.SystemPrefix + "ttl_index__"); err != nil {
		return fmt.Errorf("system_prefix: %w", err)
	}
	return nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
