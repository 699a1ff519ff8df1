package config

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// warnings returns what is valid but deserves a look.
func (c *Config) warnings() []string {
	var w []string
	add := func(format string, args ...any) { w = append(w, fmt.Sprintf(format, args...)) }
	if n := len(c.Sync.MasterSecret); n > 0 && n < minSecret {
		add("sync.master_secret has only %d bytes; who guesses it can read and write all storages", n)
	}
	if n := len(c.TokenServer.MetricsHashSecret); n > 0 && n < minSecret {
		add("tokenserver.metrics_hash_secret has only %d bytes", n)
	}
	if c.Admin.Enabled && !isLoopback(c.Admin.Listen) {
		add("admin.listen (%s) can be reached from other machines: metrics and health need no token", c.Admin.Listen)
	}
	if u := c.Sync.PublicURL; strings.HasPrefix(u, "http://") && !isLoopback(strings.TrimPrefix(u, "http://")) {
		add("sync.public_url is not https: others on the network can read the tokens of users")
	}
	if c.TokenServer.Enabled && c.TokenServer.Mode == ModeOffline {
		add("tokenserver.mode is offline: nobody with a Mozilla account can sign in, only tokens minted with the master secret are believed")
	}
	for _, p := range c.Sync.TrustedProxies {
		if p.Bits() == 0 {
			add("sync.trusted_proxies contains %v: every client can choose the address it pretends to have called", p)
		}
	}
	if len(c.Sync.TrustedProxies) > 0 && c.Sync.PublicURL != "" {
		add("sync.trusted_proxies has no effect on URLs, because sync.public_url is set")
	}
	if len(c.Sync.Offload.Collections) > 0 && !c.Reconcile.Enabled {
		add("reconcile.enabled is false: without a reconciler elsewhere, payloads of %s disappear after 30 days",
			strings.Join(c.Sync.Offload.Collections, ", "))
	}
	return w
}

// isLoopback reports whether address, with or without a port and a path, is on
// this machine only.
func isLoopback(address string) bool {
	host, _, _ := strings.Cut(address, "/")
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return host == "localhost" || err == nil && ip.IsLoopback()
}
