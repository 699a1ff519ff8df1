package config

import (
	"maps"
	"net"
	"slices"
	"strings"
)

// alias is a name that Mozilla's server reads from the environment, without
// "SYNC_". Exactly one field is set.
type alias struct {
	key     string // the same setting here
	seconds string // the same setting here; there in whole seconds
	ignored string // why it means nothing here
	refused string // why this program cannot do what it asks for, and what to do
	// parse takes the text apart into several settings.
	parse func(l *loader, text, variable string)
}

const oneDatabase = "accounts are kept in the same engine as the records (engine.kind); unset it"

func aliases() map[string]alias {
	m := map[string]alias{
		"HOST":                 {key: "sync.listen"}, // these four are put
		"PORT":                 {key: "sync.listen"}, // together by readAliases
		"STATSD_HOST":          {key: "statsd.address"},
		"STATSD_PORT":          {key: "statsd.address"},
		"MASTER_SECRET":        {key: "sync.master_secret"},
		"ENVIRONMENT":          {ignored: "there are no environments here"},
		"HUMAN_LOGS":           {ignored: "see log.format"},
		"ACTIX_KEEP_ALIVE":     {ignored: "connections need no setting"},
		"INCLUDE_HOSTNAME_TAG": {ignored: "the statsd server knows the sender"},
		"CORS_ALLOWED_ORIGIN":  {key: "sync.cors.allowed_origin"},
		"CORS_ALLOWED_METHODS": {ignored: "they follow from the protocol"},
		"CORS_ALLOWED_HEADERS": {ignored: "they follow from the protocol"},
		"CORS_MAX_AGE":         {seconds: "sync.cors.max_age"},
	}
	storage := map[string]alias{
		"ENABLED":                          {key: "sync.enabled"},
		"DATABASE_URL":                     {parse: (*loader).readDatabaseURL},
		"DATABASE_POOL_MAX_SIZE":           {key: "engine.postgres.pool_size"},
		"DATABASE_POOL_CONNECTION_TIMEOUT": {ignored: "a request waits as long as its client does"},
		"DATABASE_SPANNER_ROUTE_TO_LEADER": {ignored: "the client library decides"},
		"SPANNER_EMULATOR_HOST":            {key: "engine.spanner.emulator_host"},
		"LIMITS__COLLECTIONS":              {key: "sync.limits.collections"},
		"ENABLE_QUOTA":                     {key: "sync.quota.enabled"},
		"ENFORCE_QUOTA":                    {key: "sync.quota.enforced"},
		"LBHEARTBEAT_TTL":                  {seconds: "sync.lbheartbeat_ttl"},
		"LBHEARTBEAT_TTL_JITTER":           {key: "sync.lbheartbeat_jitter"},
		"STATSD_LABEL":                     {ignored: "the names of metrics are fixed"},
		"GLEAN_ENABLED":                    {ignored: "no telemetry is sent to Mozilla"},
		"GCS_PAYLOAD_BUCKET":               {parse: (*loader).readBucket},
		"GCS_ENDPOINT":                     {key: "store.gcs.endpoint"},
		"GCS_PAYLOAD_OFFLOAD_COLLECTIONS":  {key: "sync.offload.collections"},
		"GCS_PAYLOAD_MAX_CONCURRENCY":      {key: "sync.offload.max_concurrency"},
	}
	for _, l := range []string{"max_request_bytes", "max_post_records", "max_post_bytes",
		"max_record_payload_bytes", "max_total_records", "max_total_bytes", "max_quota_limit"} {
		storage["LIMITS__"+strings.ToUpper(l)] = alias{key: "sync.limits." + l}
	}
	tokenserver := map[string]alias{
		"ENABLED":                          {key: "tokenserver.enabled"},
		"DATABASE_URL":                     {refused: oneDatabase},
		"DATABASE_POOL_MAX_SIZE":           {ignored: oneDatabase},
		"DATABASE_POOL_CONNECTION_TIMEOUT": {ignored: oneDatabase},
		"RUN_MIGRATIONS":                   {ignored: "the engine takes care of its schema"},
		"SPANNER_NODE_ID":                  {ignored: "nodes are chosen by their capacity"},
		"SPANNER_EMULATOR_HOST":            {ignored: oneDatabase},
		"STATSD_LABEL":                     {ignored: "the names of metrics are fixed"},
		"TOKEN_DURATION":                   {seconds: "tokenserver.token_duration"},
		"FXA_OAUTH_SERVER_URL":             {key: "tokenserver.oauth_server_url"},
		"FXA_OAUTH_REQUEST_TIMEOUT":        {seconds: "tokenserver.oauth_request_timeout"},
		"FXA_METRICS_HASH_SECRET":          {key: "tokenserver.metrics_hash_secret"},
		"FXA_WEBHOOK_ENABLED":              {key: "tokenserver.webhook.enabled"},
		"FXA_WEBHOOK_METRICS_ONLY":         {key: "tokenserver.webhook.metrics_only"},
		"FXA_WEBHOOK_SET_CLIENT_ID":        {key: "tokenserver.webhook.client_id"},
		"FXA_WEBHOOK_SET_ISSUER":           {key: "tokenserver.webhook.issuer"},
	}
	for _, same := range []string{"node_type", "init_node_url", "init_node_capacity",
		"node_capacity_release_rate", "allow_new_users", "fxa_email_domain"} {
		tokenserver[strings.ToUpper(same)] = alias{key: "tokenserver." + same}
	}
	for _, jwk := range []string{"primary_jwk", "secondary_jwk"} {
		for _, f := range []string{"kty", "alg", "kid", "fxa_created_at", "use", "n", "e"} {
			tokenserver["FXA_OAUTH_"+strings.ToUpper(jwk+"__"+f)] = alias{key: "tokenserver." + jwk + "." + f}
		}
	}
	for name, a := range storage {
		m["SYNCSTORAGE__"+name] = a
	}
	for name, a := range tokenserver {
		m["TOKENSERVER__"+name] = a
	}
	return m
}

const aliasPrefix = "SYNC_"

// readAliases reads Mozilla's names. Names with SYNC_ that it does not know are
// left alone, because that prefix is not ours, except in its two sections, where
// they get a warning.
func (l *loader) readAliases(env map[string]string) {
	known := aliases()
	for _, v := range slices.Sorted(maps.Keys(env)) {
		name, ok := strings.CutPrefix(v, aliasPrefix)
		if !ok {
			continue
		}
		a, ok := known[name]
		switch {
		case ok:
			l.readAlias(a, v, env[v])
		case strings.HasPrefix(name, "SYNCSTORAGE__"), strings.HasPrefix(name, "TOKENSERVER__"):
			l.warn("%s is ignored: unknown%s", v, didYouMean(aliasPrefix, name, slices.Sorted(maps.Keys(known))))
		}
	}
	l.readAddress(env, aliasPrefix+"HOST", aliasPrefix+"PORT", "sync.listen")
	if l.readAddress(env, aliasPrefix+"STATSD_HOST", aliasPrefix+"STATSD_PORT", "statsd.address") {
		l.set("statsd.enabled", true, l.sources["statsd.address"])
	}
}

func (l *loader) readAlias(a alias, variable, text string) {
	switch {
	case a.refused != "":
		l.mistake("%s: %s", variable, a.refused)
	case a.ignored != "":
		l.warn("%s is ignored: %s", variable, a.ignored)
	case a.parse != nil:
		a.parse(l, text, variable)
	case a.seconds != "":
		l.setText(a.seconds, text+"s", variable)
	case a.key == "sync.listen" || a.key == "statsd.address":
		// See readAddress.
	default:
		l.setText(a.key, text, variable)
	}
}

// readDatabaseURL reads the place of the database as Mozilla's server writes it.
func (l *loader) readDatabaseURL(text, variable string) {
	scheme, rest, _ := strings.Cut(text, "://")
	switch scheme {
	case "postgres", "postgresql":
		l.set("engine.kind", EnginePostgres, variable)
		l.set("engine.postgres.url", text, variable)
	case "spanner":
		part := strings.Split(rest, "/")
		if len(part) != 6 || part[0] != "projects" || part[2] != "instances" || part[4] != "databases" {
			l.mistake("%s: is not spanner://projects/PROJECT/instances/INSTANCE/databases/DATABASE", variable)
			return
		}
		l.set("engine.kind", EngineSpanner, variable)
		l.set("engine.spanner.project_id", part[1], variable)
		l.set("engine.spanner.instance_id", part[3], variable)
		l.set("engine.spanner.database_id", part[5], variable)
	default:
		l.mistake("%s: is neither a postgres:// nor a spanner:// URL; rows are kept in one of the engines that engine.kind names", variable)
	}
}

func (l *loader) readBucket(text, variable string) {
	l.set("store.kind", StoreGCS, variable)
	l.set("store.gcs.bucket", text, variable)
}

// readAddress puts a host and a port in place of those that key has so far. It
// reports whether one of the variables is set.
func (l *loader) readAddress(env map[string]string, hostVar, portVar, name string) bool {
	host, port := env[hostVar], env[portVar]
	if host == "" && port == "" {
		return false
	}
	address := l.keys[name].value.(*string)
	oldHost, oldPort, err := net.SplitHostPort(*address)
	if err != nil {
		return false // Validate has something to say about it
	}
	source := hostVar
	if host == "" {
		host, source = oldHost, portVar
	}
	if port == "" {
		port = oldPort
	}
	l.set(name, net.JoinHostPort(strings.Trim(host, "[]"), port), source)
	return true
}
