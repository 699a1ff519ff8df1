package s3

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/blob/s3/s3test"
)

func TestOpenNamesTheWrongSetting(t *testing.T) {
	tests := []struct {
		name   string
		change func(*s3test.Server, *Options)
		want   string
	}{
		{"no bucket", func(_ *s3test.Server, o *Options) { o.Bucket = "" }, "no bucket is set"},
		{"missing bucket", func(_ *s3test.Server, o *Options) { o.Bucket = "elsewhere" }, "no such bucket"},
		{"unknown key", func(_ *s3test.Server, o *Options) { o.AccessKeyID = "somebody" }, "not valid (InvalidAccessKeyId)"},
		{"wrong secret", func(_ *s3test.Server, o *Options) { o.SecretAccessKey = "guessed-secret" }, "not valid (SignatureDoesNotMatch)"},
		{"half a credential", func(_ *s3test.Server, o *Options) { o.SecretAccessKey = "" }, "only one is set"},
		{"bad endpoint", func(_ *s3test.Server, o *Options) { o.Endpoint = "localhost:9000" }, "endpoint"},
		{"secret in endpoint", func(_ *s3test.Server, o *Options) { o.Endpoint = "http://me:guessed-secret@host" }, "endpoint"},
		{"no If-None-Match", func(s *s3test.Server, _ *Options) { s.Ignore(http.MethodPut, "If-None-Match") }, "ignores If-None-Match"},
		{"no If-Match", func(s *s3test.Server, _ *Options) { s.Ignore(http.MethodPut, "If-Match") }, "ignores If-Match"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := s3test.New(t)
			opts := optionsFor(s)
			test.change(s, &opts)
			_, err := Open(t.Context(), opts)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("Open = %v, want an error with %q", err, test.want)
			}
			for _, secret := range []string{s3test.SecretAccessKey, "guessed-secret"} {
				if err != nil && strings.Contains(err.Error(), secret) {
					t.Errorf("the error shows the secret: %v", err)
				}
			}
		})
	}
}

func TestOpenEndsWithContext(t *testing.T) {
	s := s3test.New(t)
	s.Freeze()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Open(ctx, optionsFor(s)); !errors.Is(err, context.Canceled) {
		t.Errorf("Open = %v, want context.Canceled", err)
	}
}

func levels(t *testing.T, c blob.Checker) map[string]blob.Level {
	t.Helper()
	findings, err := c.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	worst := map[string]blob.Level{}
	for _, f := range findings {
		if f.Text == "" {
			t.Errorf("%+v says nothing", f)
		}
		worst[f.Setting] = max(worst[f.Setting], f.Level)
	}
	return worst
}

func TestCheck(t *testing.T) {
	const rule = `<LifecycleConfiguration><Rule><ID>x</ID><Status>%s</Status><Filter><Prefix></Prefix></Filter>%s</Rule></LifecycleConfiguration>`
	rules := func(status, what string) string {
		return fmt.Sprintf(rule, status, what)
	}
	tests := []struct {
		name    string
		change  func(*s3test.Server)
		setting string
		want    blob.Level
	}{
		{"fresh bucket", func(*s3test.Server) {}, "lifecycle", blob.OK},
		{"conditions", func(*s3test.Server) {}, "conditions", blob.OK},
		{"expiry", func(s *s3test.Server) { s.SetLifecycle(rules("Enabled", "<Expiration><Days>30</Days></Expiration>")) }, "lifecycle", blob.Problem},
		{"expiry turned off", func(s *s3test.Server) { s.SetLifecycle(rules("Disabled", "<Expiration><Days>30</Days></Expiration>")) }, "lifecycle", blob.OK},
		{"abort uploads", func(s *s3test.Server) {
			s.SetLifecycle(rules("Enabled", "<AbortIncompleteMultipartUpload><DaysAfterInitiation>7</DaysAfterInitiation></AbortIncompleteMultipartUpload>"))
		}, "lifecycle", blob.OK},
		{"old versions", func(s *s3test.Server) {
			s.SetLifecycle(rules("Enabled", "<NoncurrentVersionExpiration><NoncurrentDays>7</NoncurrentDays></NoncurrentVersionExpiration>"))
		}, "lifecycle", blob.OK},
		{"versioning", func(s *s3test.Server) { s.SetVersioning(t, true) }, "versioning", blob.Note},
		{"no conditional delete", func(s *s3test.Server) { s.Ignore(http.MethodDelete, "If-Match") }, "conditions", blob.Note},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := s3test.New(t)
			test.change(s)
			d := openTest(t, s)
			if got := levels(t, d)[test.setting]; got != test.want {
				t.Errorf("%s is %v, want %v", test.setting, got, test.want)
			}
			if got := s.Keys(t); len(got) != 1 || got[0] != probeKey {
				t.Errorf("keys after the check: %v", got)
			}
		})
	}
}
