package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/holdfast-dev/holdfast/api/admin"
	"github.com/holdfast-dev/holdfast/api/sync15"
	"github.com/holdfast-dev/holdfast/api/sync15/bso"
	"github.com/holdfast-dev/holdfast/api/sync15/hawk"
	"github.com/holdfast-dev/holdfast/api/sync15/oauth"
	"github.com/holdfast-dev/holdfast/api/sync15/storage"
	"github.com/holdfast-dev/holdfast/api/sync15/tokenserver"
	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/cmd/holdfast/config"
	"github.com/holdfast-dev/holdfast/verify"
)

// version is the release, set by the linker.
var version = "dev"

func versionInfo() admin.Version {
	v := admin.Version{Source: "https://github.com/holdfast-dev/holdfast", Version: version, Build: runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				v.Commit = s.Value
			}
		}
	}
	return v
}

// rememberedReplays is how many changing requests the Sync door remembers: at a
// thousand in a second, those of four minutes, in about 10 MB.
const rememberedReplays = 256 << 10

// turnsPerCPU is enough for commits to share the syncing of the log.
const turnsPerCPU = 4

// commitBudget bounds what commits into the embedded engine hold at one time: the
// process is to run in little memory, and a commit takes milliseconds.
const commitBudget = 2 << 20

func (h *house) syncDoor(ctx context.Context) (http.Handler, error) {
	c := &h.cfg.Sync
	keyring, err := hawk.NewKeyring(string(h.secrets.Master))
	if err != nil {
		return nil, err
	}
	opts := sync15.Options{
		Store: h.storage, Keyring: keyring, Clock: h.clock, Limits: syncLimits(&c.Limits),
		TrustedProxies: c.TrustedProxies, AllowAnonymousConfiguration: c.AllowAnonymousConfiguration,
		Offload: h.offloader, OffloadCollections: c.Offload.Collections, OffloadMinBytes: int(c.Offload.MinBytes),
		EnforceQuota: c.Quota.Enforced, QuotaEnabled: c.Quota.Enabled,
		Backoff: c.Backoff, BodyBudget: int64(c.MaxBodyMemory), CORS: sync15.DefaultCORS(),
		Check: h.check, Metrics: h.metrics, Log: h.log,
	}
	opts.CORS.Origin, opts.CORS.MaxAge = c.CORS.AllowedOrigin, c.CORS.MaxAge
	if h.cfg.Engine.Kind == config.EnginePebble {
		opts.Turns, opts.CommitBudget = turnsPerCPU*runtime.GOMAXPROCS(0), commitBudget
	}
	if opts.Version, err = json.Marshal(versionInfo()); err != nil {
		return nil, fmt.Errorf("render version: %w", err)
	}
	if c.PublicURL != "" {
		origin, err := hawk.ParsePublicURL(c.PublicURL)
		if err != nil {
			return nil, err
		}
		opts.PublicURL = &origin
	}
	if c.RefuseReplays {
		opts.RememberReplays = rememberedReplays
	}
	if opts.HeartbeatTTL, err = jitter(c.LBHeartbeatTTL, c.LBHeartbeatJitter); err != nil {
		return nil, err
	}
	if h.cfg.TokenServer.Enabled {
		if opts.TokenServer, err = h.tokenServer(ctx, keyring); err != nil {
			return nil, err
		}
	}
	return sync15.New(opts)
}

// jitter adds up to percent of d at random.
func jitter(d time.Duration, percent int) (time.Duration, error) {
	most := int64(d) / 100 * int64(percent)
	if most <= 0 {
		return d, nil
	}
	n, err := rand.Int(rand.Reader, big.NewInt(most))
	if err != nil {
		return 0, fmt.Errorf("read random bytes: %w", err)
	}
	return d + time.Duration(n.Int64()), nil
}

func syncLimits(l *config.Limits) bso.Limits {
	limits := bso.Limits{
		MaxRequestBytes: int64(l.MaxRequestBytes), MaxPostRecords: int64(l.MaxPostRecords), MaxPostBytes: int64(l.MaxPostBytes),
		MaxRecordPayloadBytes: int64(l.MaxRecordPayloadBytes), MaxTotalRecords: int64(l.MaxTotalRecords),
		MaxTotalBytes: int64(l.MaxTotalBytes), MaxQuota: int64(l.MaxQuotaLimit),
	}
	given := func(b config.Bytes) *int64 {
		if b == 0 {
			return nil
		}
		n := int64(b)
		return &n
	}
	for name, c := range l.Collections {
		if limits.Collections == nil {
			limits.Collections = map[string]bso.Override{}
		}
		limits.Collections[name] = bso.Override{
			MaxRecordPayloadBytes: given(c.MaxRecordPayloadBytes), MaxPostBytes: given(c.MaxPostBytes), MaxRequestBytes: given(c.MaxRequestBytes),
		}
	}
	return limits
}

// storeTimeout bounds the engine's part of a token request.
const storeTimeout = 10 * time.Second

func (h *house) tokenServer(ctx context.Context, keyring *hawk.Keyring) (http.Handler, error) {
	c := &h.cfg.TokenServer
	if err := h.ensureNode(ctx); err != nil {
		return nil, err
	}
	opts := tokenserver.Options{
		Store: h.accounts, Keyring: keyring, Clock: h.clock, Random: rand.Reader, EmailDomain: c.FxAEmailDomain,
		MetricsHashSecret: string(h.secrets.MetricsHash), TokenDuration: c.TokenDuration, NodeType: c.NodeType,
		StoreTimeout: storeTimeout, EventsMetricsOnly: c.Webhook.MetricsOnly, Log: h.log,
		Metrics: h.metrics.Group("syncstorage.tokenserver"),
	}
	keys, err := h.accountKeys()
	if err != nil {
		return nil, err
	}
	if c.Mode == config.ModeOffline {
		opts.Accounts, err = oauth.NewOffline(string(h.secrets.Master), h.clock)
		if err != nil {
			return nil, err
		}
	} else {
		opts.Accounts = oauth.NewAccounts(h.accountService(), keys)
	}
	if c.Webhook.Enabled {
		opts.Events = oauth.NewEvents(keys, h.clock, c.Webhook.ClientID, c.Webhook.Issuer)
	}
	return tokenserver.New(opts)
}

// ensureNode makes sure that there is a node to send clients to: the one configured,
// or this server itself.
func (h *house) ensureNode(ctx context.Context) error {
	c := &h.cfg.TokenServer
	if c.InitNodeURL == "" {
		return h.accounts.EnsureOwnNode(ctx, h.cfg.NodeURL(), int64(c.InitNodeCapacity))
	}
	_, err := h.accounts.EnsureNode(ctx, c.InitNodeURL, int64(c.InitNodeCapacity))
	return err
}

func (h *house) accountService() oauth.Options {
	return oauth.Options{Server: h.cfg.TokenServer.OAuthServerURL, Timeout: h.cfg.TokenServer.OAuthRequestTimeout, Clock: h.clock}
}

// accountKeys returns the configured keys of the account server, or those that it
// publishes.
func (h *house) accountKeys() (*oauth.Keys, error) {
	texts, err := h.cfg.TokenServer.Keys()
	if err != nil {
		return nil, err
	}
	keys := make([]jose.JSONWebKey, len(texts))
	for i, text := range texts {
		if keys[i], err = oauth.ParseKey(text); err != nil {
			return nil, err
		}
	}
	return oauth.NewKeys(h.accountService(), keys...), nil
}

// check asks the engine and the object store whether they answer.
func (h *house) check(ctx context.Context) error {
	return errors.Join(h.checkEngine(ctx), h.checkObjects(ctx))
}

func (h *house) checkEngine(ctx context.Context) error {
	_, err := h.db.Spaces(ctx)
	return err
}

func (h *house) checkObjects(ctx context.Context) error {
	_, err := h.objects.Stat(ctx, "health")
	if errors.Is(err, blob.ErrNotFound) {
		return nil
	}
	return err
}

// adminDoor returns the operator's door. It is not ready once serving has ended.
func (h *house) adminDoor(serving context.Context) *admin.Server {
	s := admin.New(admin.Options{
		Checks: map[string]func(context.Context) error{
			"engine":  h.checkEngine,
			"objects": h.checkObjects,
			"serving": func(context.Context) error { return serving.Err() },
		},
		Metrics: h.metrics.Handler(), Version: versionInfo(), Token: string(h.secrets.AdminToken), Hosts: h.cfg.Admin.Hosts, Logger: h.log,
	})
	s.HandleQueues(h.queues)
	s.HandleVerify(h.verifyOptions())
	for pattern, page := range tokenserver.OperatorPages(h.accounts) {
		s.Handle(pattern, page)
	}
	return s
}

// verifyOptions says what there is to verify.
func (h *house) verifyOptions() verify.Options {
	return verify.Options{
		DB: h.db, Store: h.objects, Clock: h.clock, Staged: []string{storage.SpaceStaged}, Index: h.index,
		Pending: verify.PendingIn(h.changes),
		Checks:  []verify.Check{{Name: "queues", Run: h.queues.Check}},
	}
}
