package lease

import "github.com/holdfast-dev/holdfast/metrics"

// meters are the metrics of a manager.
type meters struct {
	takeovers, lost *metrics.Counter
}

func newMeters(r *metrics.Registry, m *Manager) meters {
	r = r.Group("holdfast.lease")
	r.GaugeFunc("held", func(set func(float64, ...string)) {
		m.mu.Lock()
		defer m.mu.Unlock()
		for name, r := range m.roles {
			set(float64(len(r.held)), name)
		}
	}, "role")
	return meters{takeovers: r.Counter("takeovers", "role"), lost: r.Counter("lost_sessions")}
}
