package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/api/sync15/hawk"
	"github.com/holdfast-dev/holdfast/kv"
)

const (
	// quotingRoom is what max_request_bytes must leave above max_post_bytes: a
	// full POST is JSON text around its payloads.
	quotingRoom = 4 << 10

	// rowRoom is what a row needs beside an inline payload.
	rowRoom = 64 << 10

	// minSecret is the shortest secret that is not worth a warning, in bytes.
	minSecret = 16
)

var collectionPattern = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,32}$`)

// mistakes collects what is wrong, each with its key.
type mistakes struct{ errs []error }

func (m *mistakes) add(key, format string, args ...any) {
	m.errs = append(m.errs, fmt.Errorf("%s: "+format, append([]any{key}, args...)...))
}

// above wants v to be more than least, as wants it to be at least that.
func above[T int | Bytes | time.Duration | float64](m *mistakes, key string, v, least T) {
	if v <= least {
		m.add(key, "%v is too small, it must be above %v", v, least)
	}
}

func atLeast[T int | Bytes | time.Duration](m *mistakes, key string, v, least T) {
	if v < least {
		m.add(key, "%v is too small, it must be at least %v", v, least)
	}
}

func (m *mistakes) oneOf(key, v string, choices ...string) {
	if !slices.Contains(choices, v) {
		m.add(key, "%q is unknown; possible: %s", v, strings.Join(choices, ", "))
	}
}

// wholeSeconds is for durations that the protocols carry in seconds.
func (m *mistakes) wholeSeconds(key string, d time.Duration) {
	if d%time.Second != 0 {
		m.add(key, "%v is not a whole number of seconds", d)
	}
}

// Validate reports every mistake of c, each with its key and what to do.
func (c *Config) Validate() error {
	m := &mistakes{}
	if c.DataDir == "" {
		m.add("data_dir", "is empty; name a folder")
	}
	c.Sync.validate(m)
	c.TokenServer.validate(m)
	c.Engine.validate(m)
	c.Store.validate(m)
	c.Queue.validate(m)
	c.Reconcile.validate(m)
	c.Publish.validate(m)
	c.Admin.validate(m)
	if c.Statsd.Enabled {
		m.address("statsd.address", c.Statsd.Address)
	}
	m.oneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	m.oneOf("log.format", c.Log.Format, "text", "json")
	atLeast(m, "shutdown.timeout", c.Shutdown.Timeout, 0)
	c.validateTogether(m)
	c.validateShared(m)
	return errors.Join(m.errs...)
}

// validateTogether looks at what spans tables.
func (c *Config) validateTogether(m *mistakes) {
	syncOn := c.Sync.Enabled || c.TokenServer.Enabled
	if c.Admin.Enabled && syncOn && c.Admin.Listen == c.Sync.Listen && !strings.HasSuffix(c.Admin.Listen, ":0") {
		m.add("admin.listen", "is the same as sync.listen; the operator's door needs a port of its own")
	}
	if c.Engine.Kind == EnginePebble && c.Store.Kind == StoreFS && c.EnginePath() == c.StorePath() {
		m.add("store.path", "is the same as engine.path; rows and objects need a folder each")
	}
	if !c.TokenServer.Enabled || c.Sync.PublicURL != "" || c.TokenServer.InitNodeURL != "" {
		return
	}
	host, _, err := net.SplitHostPort(c.Sync.Listen)
	if ip, _ := netip.ParseAddr(host); err == nil && (host == "" || ip.IsUnspecified()) {
		m.add("sync.public_url", "must be set when sync.listen (%s) is on all addresses: "+
			"the token server tells clients under which URL to find their storage", c.Sync.Listen)
	}
}

func (s *Sync) validate(m *mistakes) {
	m.address("sync.listen", s.Listen)
	if s.PublicURL != "" {
		if _, err := hawk.ParsePublicURL(s.PublicURL); err != nil {
			m.add("sync.public_url", "%w; want a URL such as https://sync.example.org", err)
		}
	}
	if s.MasterSecret != "" && s.MasterSecretFile != "" {
		m.add("sync.master_secret_file", "is set beside sync.master_secret; remove one")
	}
	m.wholeSeconds("sync.backoff", s.Backoff)
	atLeast(m, "sync.backoff", s.Backoff, 0)
	atLeast(m, "sync.lbheartbeat_ttl", s.LBHeartbeatTTL, 0)
	if s.LBHeartbeatJitter < 0 || s.LBHeartbeatJitter > 100 {
		m.add("sync.lbheartbeat_jitter", "%d is not a percentage from 0 to 100", s.LBHeartbeatJitter)
	}
	if s.Quota.Enforced && !s.Quota.Enabled {
		m.add("sync.quota.enforced", "needs sync.quota.enabled = true")
	}
	m.collectionNames("sync.offload.collections", s.Offload.Collections)
	atLeast(m, "sync.offload.min_bytes", s.Offload.MinBytes, 0)
	atLeast(m, "sync.offload.max_concurrency", s.Offload.MaxConcurrency, 1)
	s.validateLimits(m)
	m.origin("sync.cors.allowed_origin", s.CORS.AllowedOrigin)
	m.wholeSeconds("sync.cors.max_age", s.CORS.MaxAge)
	atLeast(m, "sync.cors.max_age", s.CORS.MaxAge, 0)
}

// validateLimits checks the general limits and, for each collection with limits
// of its own, what they come to together.
func (s *Sync) validateLimits(m *mistakes) {
	l := &s.Limits
	before := len(m.errs)
	above(m, "sync.limits.max_request_bytes", l.MaxRequestBytes, 0)
	above(m, "sync.limits.max_post_records", l.MaxPostRecords, 0)
	above(m, "sync.limits.max_post_bytes", l.MaxPostBytes, 0)
	above(m, "sync.limits.max_record_payload_bytes", l.MaxRecordPayloadBytes, 0)
	atLeast(m, "sync.limits.max_total_records", l.MaxTotalRecords, l.MaxPostRecords)
	atLeast(m, "sync.limits.max_total_bytes", l.MaxTotalBytes, l.MaxPostBytes)
	above(m, "sync.limits.max_quota_limit", l.MaxQuotaLimit, 0)
	if len(m.errs) > before {
		return // the limits of collections would repeat it
	}
	names := slices.Sorted(maps.Keys(l.Collections))
	m.collectionNames("sync.limits.collections", names)
	s.validateLimitsOf(m, "", "sync.limits.")
	for _, name := range names {
		s.validateLimitsOf(m, name, "sync.limits.collections."+name+".")
	}
	atLeast(m, "sync.max_body_memory", s.MaxBodyMemory, l.largestRequest())
}

// validateLimitsOf checks the limits of one collection; "" is every collection
// without limits of its own.
func (s *Sync) validateLimitsOf(m *mistakes, collection, prefix string) {
	record, post, request := s.Limits.of(collection)
	if record > post {
		m.add(prefix+"max_record_payload_bytes", "%v is above max_post_bytes (%v), so such a record could never be sent", record, post)
	}
	if request < post+quotingRoom {
		m.add(prefix+"max_request_bytes", "%v is too small, it must be at least 4KiB above max_post_bytes (%v)", request, post)
	}
	if record > kv.MaxValueSize-rowRoom && !slices.Contains(s.Offload.Collections, collection) {
		m.add(prefix+"max_record_payload_bytes", "%v does not fit into a row (%v with its other fields); "+
			"allow more only for collections in sync.offload.collections", record, Bytes(kv.MaxValueSize))
	}
}

// of returns the limits of a collection: its own where it has some.
func (l *Limits) of(collection string) (record, post, request Bytes) {
	own := l.Collections[collection]
	return cmp.Or(own.MaxRecordPayloadBytes, l.MaxRecordPayloadBytes),
		cmp.Or(own.MaxPostBytes, l.MaxPostBytes),
		cmp.Or(own.MaxRequestBytes, l.MaxRequestBytes)
}

// largestRequest returns the largest max_request_bytes of any collection: the
// limit of a body whose collection is not known yet.
func (l *Limits) largestRequest() Bytes {
	most := l.MaxRequestBytes
	for _, own := range l.Collections {
		most = max(most, own.MaxRequestBytes)
	}
	return most
}

func (t *TokenServer) validate(m *mistakes) {
	m.oneOf("tokenserver.mode", t.Mode, ModeAccounts, ModeOffline)
	above(m, "tokenserver.token_duration", t.TokenDuration, 0)
	m.wholeSeconds("tokenserver.token_duration", t.TokenDuration)
	m.oneOf("tokenserver.node_type", t.NodeType, "mysql", "postgres", "spanner")
	if r := t.NodeCapacityReleaseRate; !(r > 0 && r <= 1) {
		m.add("tokenserver.node_capacity_release_rate", "%v is not a share above 0 and at most 1", r)
	}
	if t.InitNodeURL != "" {
		m.httpURL("tokenserver.init_node_url", t.InitNodeURL)
	}
	atLeast(m, "tokenserver.init_node_capacity", t.InitNodeCapacity, 1)
	if t.FxAEmailDomain == "" || strings.ContainsAny(t.FxAEmailDomain, "@/ ") {
		m.add("tokenserver.fxa_email_domain", "%q is not a domain such as api.accounts.firefox.com", t.FxAEmailDomain)
	}
	t.validateKeys(m)
	if !t.Enabled {
		return
	}
	if t.Mode == ModeAccounts {
		m.httpURL("tokenserver.oauth_server_url", t.OAuthServerURL)
		above(m, "tokenserver.oauth_request_timeout", t.OAuthRequestTimeout, 0)
	}
	if t.Webhook.Enabled {
		if t.Mode == ModeOffline {
			m.add("tokenserver.webhook.enabled", "needs an account server, and tokenserver.mode is offline")
		}
		if t.Webhook.ClientID == "" {
			m.add("tokenserver.webhook.client_id", "is empty; events are accepted only for a client id")
		}
		if t.Webhook.Issuer == "" {
			m.add("tokenserver.webhook.issuer", "is empty; events are accepted only from an issuer")
		}
	}
}

func (q *Queue) validate(m *mistakes) {
	above(m, "queue.lease", q.Lease, 0)
	above(m, "queue.backoff_first", q.BackoffFirst, 0)
	atLeast(m, "queue.backoff_max", q.BackoffMax, q.BackoffFirst)
	atLeast(m, "queue.backoff_late", q.BackoffLate, q.BackoffMax)
}

func (r *Reconcile) validate(m *mistakes) {
	atLeast(m, "reconcile.concurrency", r.Concurrency, 1)
	atLeast(m, "reconcile.lease", r.Lease, time.Second)
	atLeast(m, "reconcile.max_attempts", r.MaxAttempts, 1)
	atLeast(m, "reconcile.delete_delay", r.DeleteDelay, 0)
	r.PubSub.validate(m)
	if r.PubSub.Wanted() && r.DeleteDelay > maxPubSubDelay {
		m.add("reconcile.delete_delay", "%v is above %v, the longest time that Pub/Sub holds a message back", r.DeleteDelay, maxPubSubDelay)
	}
}

func (a *Admin) validate(m *mistakes) {
	if !a.Enabled {
		return
	}
	m.address("admin.listen", a.Listen)
	for _, h := range a.Hosts {
		if h == "" || strings.ContainsAny(h, "*:/ ") {
			m.add("admin.hosts", "%q is not a host name without port, such as holdfast.internal", h)
		}
	}
	if a.Token != "" && len(a.Token) < minSecret {
		m.add("admin.token", "is shorter than %d bytes; make one with: openssl rand -hex 32", minSecret)
	}
}

// address wants host:port with a port from 0 to 65535; the host may be empty.
func (m *mistakes) address(key, s string) {
	_, port, err := net.SplitHostPort(s)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		m.add(key, "%q is not an address such as 127.0.0.1:8000", s)
	}
}

func (m *mistakes) httpURL(key, s string) {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" ||
		u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		m.add(key, "is not a URL such as https://example.org, without user, query and fragment")
	}
}

func (m *mistakes) origin(key, s string) {
	if s == "*" {
		return
	}
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Scheme+"://"+u.Host != s {
		m.add(key, "%q is neither * nor an origin such as https://example.org", s)
	}
}

func (m *mistakes) collectionNames(key string, names []string) {
	for _, n := range names {
		if !collectionPattern.MatchString(n) {
			m.add(key, "%q cannot be the name of a collection: 1 to 32 of a-z A-Z 0-9 . _ -", n)
		}
	}
}
