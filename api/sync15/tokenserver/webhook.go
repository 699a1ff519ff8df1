package tokenserver

import (
	"context"
	"net/http"

	"github.com/holdfast-dev/holdfast/api/sync15/oauth"
)

// events answers POST /1.0/webhooks/fxa/events. Events that mean nothing here are
// accepted too: otherwise the account service would send them again.
func (s *Server) events(r *http.Request) (any, error) {
	token, err := bearer(r.Header)
	if err != nil {
		return nil, err
	}
	events, err := s.opts.Events.Verify(r.Context(), token)
	if err != nil {
		return nil, err
	}
	s.metrics.eventsReceived.Add(int64(len(events)))
	if s.opts.EventsMetricsOnly {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.opts.StoreTimeout)
	defer cancel()
	for _, e := range events {
		if err := s.act(ctx, e); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// act does what an event asks for. To do it again changes nothing.
func (s *Server) act(ctx context.Context, e oauth.Event) error {
	var kind string
	var err error
	switch email := s.email(e.AccountID); e.Type {
	case oauth.DeleteUser:
		kind = "delete_user"
		_, err = s.opts.Store.Retire(ctx, email)
	case oauth.PasswordChange:
		kind = "password_change"
		_, err = s.opts.Store.PasswordChanged(ctx, email, e.ChangeTime)
	default:
		return nil
	}
	if err == nil {
		s.metrics.eventsProcessed.Add(1, kind)
	}
	return err
}

func (s *Server) email(accountID string) string { return accountID + "@" + s.opts.EmailDomain }
