package main

import (
	"fmt"
	"io"

	"github.com/holdfast-dev/holdfast/cmd/holdfast/config"
)

// greet says what listens where, and how to point a Firefox at it.
func greet(out io.Writer, cfg *config.Loaded, doors []*door) {
	for _, d := range doors {
		fmt.Fprintf(out, "%s door: http://%s\n", d.name, d.listener.Addr())
	}
	if cfg.Engine.Shared() {
		fmt.Fprintf(out, "data directory: none; rows in %s, objects in %s\n", cfg.Engine.Kind, cfg.Store.Kind)
	} else {
		fmt.Fprintf(out, "data directory: %s\n", cfg.DataDir)
	}
	if !cfg.TokenServer.Enabled || !cfg.Sync.Enabled {
		return
	}
	url := cfg.NodeURL() + "/1.0/sync/1.5"
	if cfg.TokenServer.Mode == config.ModeOffline {
		fmt.Fprintf(out, "\nOffline mode: %s accepts the tokens of `holdfast sync token ACCOUNT`, and no others.\n", url)
		return
	}
	fmt.Fprintf(out, "\nPoint Firefox at this server, before you sign in:\n"+
		"  about:config  identity.sync.tokenserver.uri = %s\n", url)
}
