package reconcile

import "github.com/holdfast-dev/holdfast/metrics"

// meters are the metrics under their names in the public service.
type meters struct {
	finalizes, orphanDeletes, notFound, batchCommitSkips, noopSkips *metrics.Counter

	errors, runs, processed, budgetExhausted *metrics.Counter

	drainDuration, storeOps, finalizeAge *metrics.Timer
}

func newMeters(r *metrics.Registry) meters {
	r = r.Group("payload_reconciler")
	return meters{
		finalizes:        r.Counter("finalizes"),
		orphanDeletes:    r.Counter("orphan_deletes"),
		notFound:         r.Counter("gcs_404", "op"),
		batchCommitSkips: r.Counter("batch_commit_skips"),
		noopSkips:        r.Counter("noop_skips"),
		errors:           r.Counter("errors", "kind"),
		runs:             r.Counter("runs"),
		processed:        r.Counter("messages_processed"),
		budgetExhausted:  r.Counter("budget_exhausted"),
		drainDuration:    r.Timer("drain_duration"),
		storeOps:         r.Timer("gcs_op", "op", "result"),
		finalizeAge:      r.Timer("finalize_age"),
	}
}
