package sigv4

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/api/dynamo/fault"
	"github.com/holdfast-dev/holdfast/clock"
)

// Secret is what belongs to an access key.
type Secret struct {
	// Key is the secret access key.
	Key string
	// Token is the session token that must come with the key, empty if none may.
	Token string
	// Expires is when the token ends. The zero time is never.
	Expires time.Time
	// Principal is whose key it is. It means nothing here and is handed back.
	Principal string
}

// Lookup returns the secret of an access key, or [ErrUnknownKey]. Any other error
// means that it could not find out. It is called by many goroutines.
type Lookup func(ctx context.Context, accessKeyID string) (Secret, error)

// ErrUnknownKey says that nobody has such an access key.
var ErrUnknownKey = errors.New("sigv4: unknown access key")

// Identity is who sent a request.
type Identity struct {
	AccessKeyID string
	Region      string // of the scope; it becomes a part of ARNs
	Principal   string // of the [Secret]
}

// Options are what a [Verifier] needs.
type Options struct {
	Lookup Lookup
	Clock  clock.Clock
	// Service is the service that a scope must name, such as "dynamodb".
	Service string
	// Region is the region that a scope must name. Empty accepts any.
	Region string
}

// Verifier checks signatures. It is safe for concurrent use.
type Verifier struct {
	opts Options
	keys keyCache
}

// New returns a Verifier that remembers the signing keys of some thousand clients.
func New(opts Options) *Verifier {
	return &Verifier{opts: opts, keys: keyCache{limit: 2048}}
}

// Times of a request may be off by so much. The tolerance is for what a request
// spends on its way.
const (
	window    = 15 * time.Minute
	tolerance = 5 * time.Second
)

// Claim returns who a request says it is from. It makes all checks that need no
// secret, so that a door which asks for no signature still refuses what is not
// signed at all. The result has no Principal.
func (v *Verifier) Claim(r *http.Request) (Identity, error) {
	s, err := v.read(r)
	if err != nil {
		return Identity{}, err
	}
	return Identity{AccessKeyID: s.accessKeyID, Region: s.region}, nil
}

// Verify returns who sent a request. The body is as it was sent, before anything is
// unpacked. A refusal is a [*fault.Error]; another error is one of the [Lookup].
func (v *Verifier) Verify(ctx context.Context, r *http.Request, body []byte) (Identity, error) {
	s, err := v.read(r)
	if err != nil {
		return Identity{}, err
	}
	secret, err := v.opts.Lookup(ctx, s.accessKeyID)
	if errors.Is(err, ErrUnknownKey) {
		return Identity{}, fault.New(fault.UnrecognizedClientException, "%s", textUnknownKey)
	}
	if err != nil {
		return Identity{}, fmt.Errorf("sigv4: look up an access key: %w", err)
	}
	if !v.signed(r, body, s, secret) {
		return Identity{}, fault.New(fault.InvalidSignatureException, "%s", textMismatch)
	}
	if err := s.checkToken(secret, v.opts.Clock.Now()); err != nil {
		return Identity{}, err
	}
	return Identity{AccessKeyID: s.accessKeyID, Region: s.region, Principal: secret.Principal}, nil
}

// signed tells whether who made s knows the secret and meant exactly r and body.
func (v *Verifier) signed(r *http.Request, body []byte, s *signature, secret Secret) bool {
	hash, streaming := s.bodyHash(r, body)
	if hash == "" {
		return false
	}
	key, cached := v.keys.get(s, secret.Key)
	if !cached {
		key = signingKey(secret.Key, s.date, s.region, v.opts.Service)
	}
	scope := s.date + "/" + s.region + "/" + v.opts.Service + "/" + terminator
	canonical := sha256.Sum256(canonicalRequest(r, s, hash))
	toSign := algorithm + "\n" + s.time + "\n" + scope + "\n" + hex.EncodeToString(canonical[:])
	want := hex.EncodeToString(sign(key[:], toSign))
	if !hmac.Equal([]byte(want), []byte(s.signature)) {
		return false
	}
	if !cached {
		v.keys.put(s, secret.Key, key)
	}
	return !streaming || checkChunks(r.Header, body, key[:], s.time+"\n"+scope+"\n", s.signature)
}

const (
	contentSHA256 = "X-Amz-Content-Sha256"
	// streamingBody stands in place of the hash of a body that is signed in pieces.
	streamingBody = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
)

// bodyHash returns what the canonical request says of the body, or nothing if the
// client gave another hash than the body has. A hash counts when it is signed.
func (s *signature) bodyHash(r *http.Request, body []byte) (hash string, streaming bool) {
	given := strings.Join(r.Header[contentSHA256], ",")
	if given != "" && s.covers("x-amz-content-sha256") {
		if given == streamingBody {
			return given, true
		}
	} else {
		given = ""
	}
	sum := sha256.Sum256(body)
	hash = hex.EncodeToString(sum[:])
	if given != "" && given != hash {
		return "", false
	}
	return hash, false
}

func (s *signature) checkToken(secret Secret, now time.Time) error {
	if subtle.ConstantTimeCompare([]byte(s.token), []byte(secret.Token)) != 1 {
		return fault.New(fault.UnrecognizedClientException, "%s", textBadToken)
	}
	if !secret.Expires.IsZero() && !now.Before(secret.Expires) {
		return fault.New(fault.ExpiredTokenException, "%s", textExpiredToken)
	}
	return nil
}

// The texts of refusals. Where they have a space at the end, others may follow.
const (
	textBoth             = "Found both 'X-Amz-Algorithm' as a query-string param and 'Authorization' as HTTP header."
	textNone             = "Request is missing Authentication Token"
	textNoParameter      = "Authorization header requires '%s' parameter. "
	textNoDate           = "Authorization header requires existence of either a 'X-Amz-Date' or a 'Date' header. "
	textNoQueryParameter = "AWS query-string parameters must include '%s'. "
	textQuery            = "Re-examine the query-string parameters."
	textExpires          = "'X-Amz-Expires' must be a number of seconds from 1 to 604800. "
	textDateFormat       = "Date must be in ISO-8601 'basic format'. Got '%s'. See http://en.wikipedia.org/wiki/ISO_8601"
	textExpired          = "Signature expired: %s is now earlier than %s (%s - %s)"
	textNotYet           = "Signature not yet current: %s is still later than %s (%s + 15 min.)"
	textHost             = "'Host' must be a 'SignedHeader' in the AWS Authorization."
	textAlgorithm        = "Unsupported AWS 'algorithm': '%s' (only AWS4-HMAC-SHA256 for now). "
	textCredential       = "Credential must have exactly 5 slash-delimited elements, e.g. keyid/date/region/service/term, got '%s'"
	textRegion           = "Credential should be scoped to a valid region, not '%s'. "
	textService          = "Credential should be scoped to correct service: '%s'. "
	textTerminator       = "Credential should be scoped with a valid terminator: 'aws4_request', not '%s'. "
	textScopeDate        = "Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP: '%s' != '%s', from '%s'."
	textUnknownKey       = "The security token included in the request is invalid."
	textMismatch         = "The request signature we calculated does not match the signature you provided. Check your AWS Secret Access Key and signing method. Consult the service documentation for details."
	textBadToken         = "The security token included in the request is invalid"
	textExpiredToken     = "The security token included in the request is expired"
)

// check makes the checks that need neither the secret nor the body, after the parts
// of the signature were found.
func (s *signature) check(opts Options) error {
	at, ok := parseTime(s.time)
	if !ok {
		return fault.New(fault.IncompleteSignatureException, textDateFormat, s.time)
	}
	life, err := s.life()
	if err != nil {
		return err
	}
	now := opts.Clock.Now().UTC()
	if now.Sub(at) > life+tolerance {
		return fault.New(fault.InvalidSignatureException, textExpired, s.time, basic(now.Add(-life)), basic(now), inWords(life))
	}
	if at.Sub(now) > window+tolerance {
		return fault.New(fault.InvalidSignatureException, textNotYet, s.time, basic(now.Add(window)), basic(now))
	}
	if !s.covers("host") {
		return fault.New(fault.InvalidSignatureException, "%s", textHost)
	}
	if s.algorithm != algorithm {
		return fault.New(fault.IncompleteSignatureException, textAlgorithm, s.algorithm)
	}
	parts := strings.Split(strings.TrimRight(s.credential, "/"), "/")
	if len(parts) != 5 {
		return fault.New(fault.IncompleteSignatureException, textCredential, s.credential)
	}
	s.accessKeyID, s.date, s.region = parts[0], parts[1], parts[2]
	return s.checkScope(opts, parts[3], parts[4])
}

func (s *signature) checkScope(opts Options, service, end string) error {
	var faults string
	if opts.Region != "" && s.region != opts.Region || !validRegion(s.region) {
		faults += fmt.Sprintf(textRegion, s.region)
	}
	if service != opts.Service {
		faults += fmt.Sprintf(textService, opts.Service)
	}
	if end != terminator {
		faults += fmt.Sprintf(textTerminator, end)
	}
	if day := s.time[:8]; s.date != day {
		faults += fmt.Sprintf(textScopeDate, s.date, day, s.time)
	}
	if faults != "" {
		return fault.New(fault.InvalidSignatureException, "%s", faults)
	}
	return nil
}

// validRegion accepts what can be a part of an ARN.
func validRegion(s string) bool {
	for _, c := range []byte(s) {
		if !unreserved(c) {
			return false
		}
	}
	return s != "" && len(s) <= 64
}

// life is how long the signature is good for.
func (s *signature) life() (time.Duration, error) {
	if !s.presigned || s.expires == "" {
		return window, nil
	}
	seconds, err := strconv.ParseUint(s.expires, 10, 32)
	if err != nil || seconds < 1 || seconds > 604800 {
		return 0, fault.New(fault.IncompleteSignatureException, "%s", textExpires+textQuery)
	}
	return time.Duration(seconds) * time.Second, nil
}

func inWords(d time.Duration) string {
	if d%time.Minute != 0 {
		return strconv.Itoa(int(d/time.Second)) + " sec."
	}
	return strconv.Itoa(int(d/time.Minute)) + " min."
}

const basicFormat = "20060102T150405Z"

func basic(t time.Time) string { return t.Format(basicFormat) }

func parseTime(s string) (time.Time, bool) {
	t, err := time.Parse(basicFormat, s)
	return t, err == nil && len(s) == len(basicFormat) // Parse allows a fraction
}

func (s *signature) covers(header string) bool { return slices.Contains(s.headers, header) }
