package sync15

import (
	"github.com/holdfast-dev/holdfast/api/sync15/hawk"
	"github.com/holdfast-dev/holdfast/metrics"
)

// counters are the door's metrics, under their names in the public service.
type counters struct {
	requests     map[string]*metrics.Counter
	mistakes     map[string]*metrics.Counter
	refusedAgent *metrics.Counter
	conflicts    *metrics.Counter
	quota        *metrics.Counter
	missing      *metrics.Counter
}

// operations are the requests that are counted.
var operations = []string{
	"get_collections", "get_collection_counts", "get_collection_usage", "get_quota", "delete_all", "delete_collection",
	"delete_bsos", "get_collection", "post_collection", "post_collection_batch", "delete_bso", "get_bso", "put_bso",
}

// clientMistakes are the counters of requests that were refused.
var clientMistakes = []string{
	"request.error.invalid_content_type",
	"request.validate.request_bytes_exceeded", "request.validate.payload_too_large", "request.validate.invalid_body_json",
	"request.validate.bad_bso_body", "request.validate.invalid_accept_header", "request.validate.mod_header.negative",
	"request.validate.mod_header.conflict", "request.validate.hawk.invalid_uid", "request.validate.batch.size_exceeded",
	"request.validate.batch.missing_id", "request.validate.batch.invalid_id", "request.validate.batch.invalid_x_weave",
	"request.store.missing_bso_id", "request.store.duplicate_bso_id", "request.process.known_bad_bso",
	"request.process.missing_bso", "request.process.invalid_bso", "request.process.missing_collection",
	"request.process.invalid_collection", "error.tooMuchData",
}

var hawkReasons = []hawk.Reason{
	hawk.MissingHeader, hawk.ParseError, hawk.MissingPrefix, hawk.BadHeader, hawk.MissingID, hawk.DecodeError,
	hawk.IDTooShort, hawk.BadSignature, hawk.InvalidJSON, hawk.Expired, hawk.InvalidHeader,
}

func newCounters(r *metrics.Registry) *counters {
	r = r.Group("syncstorage")
	c := &counters{
		requests:     map[string]*metrics.Counter{},
		mistakes:     map[string]*metrics.Counter{},
		refusedAgent: r.Counter("error.rejectua"),
		conflicts:    r.Counter("storage.conflict"),
		quota:        r.Counter("storage.quota.at_limit", "collection"),
		missing:      r.Counter("storage.gcs.payload.missing"),
	}
	for _, op := range operations {
		c.requests[op] = r.Counter("request."+op, "tokenserver_origin")
	}
	for _, name := range clientMistakes {
		c.mistakes[name] = r.Counter(name)
	}
	for _, reason := range hawkReasons {
		name := "request.error.hawk." + string(reason)
		c.mistakes[name] = r.Counter(name)
	}
	return c
}

func (c *counters) request(op, origin string) { c.requests[op].Add(1, origin) }

// mistake counts a refused request. Names that are not declared are not counted.
func (c *counters) mistake(name string) {
	if name != "" {
		c.mistakes[name].Add(1)
	}
}
