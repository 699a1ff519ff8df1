package sigv4

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/api/dynamo/fault"
)

const (
	algorithm  = "AWS4-HMAC-SHA256"
	terminator = "aws4_request"
)

// signature is what a request carries to prove who sent it.
type signature struct {
	presigned  bool
	algorithm  string
	credential string
	headers    []string // the signed ones, in lower case, sorted
	signature  string
	time       string
	expires    string // presigned only
	token      string
	query      []pair // of the request, decoded

	accessKeyID, date, region string // of the credential
}

// pair is a parameter of a query.
type pair struct{ name, value string }

// read finds the signature of a request and makes all checks that need no secret.
func (v *Verifier) read(r *http.Request) (*signature, error) {
	s := &signature{query: parseQuery(r.URL.RawQuery)}
	_, inQuery := s.parameter("X-Amz-Algorithm")
	authorization := strings.TrimSpace(r.Header.Get("Authorization"))
	var err error
	switch {
	case authorization != "" && inQuery:
		err = fault.New(fault.InvalidSignatureException, "%s", textBoth)
	case inQuery:
		err = s.readQuery()
	case strings.HasPrefix(authorization, "AWS4-"):
		err = s.readHeaders(r.Header, authorization)
	default:
		err = fault.New(fault.MissingAuthenticationTokenException, "%s", textNone)
	}
	if err != nil {
		return nil, err
	}
	if s.token == "" {
		s.token = r.Header.Get("X-Amz-Security-Token")
	}
	if err := s.check(v.opts); err != nil {
		return nil, err
	}
	return s, nil
}

// readHeaders reads an Authorization header and the date beside it.
func (s *signature) readHeaders(h http.Header, authorization string) error {
	var faults string
	var rest string
	s.algorithm, rest, _ = strings.Cut(authorization, " ")
	given := parseAuthorization(rest)
	for _, p := range []struct {
		name string
		into *string
	}{{"Credential", &s.credential}, {"Signature", &s.signature}} {
		if *p.into = given[p.name]; *p.into == "" {
			faults += fmt.Sprintf(textNoParameter, p.name)
		}
	}
	names, ok := given["SignedHeaders"] // an empty list fails later, for want of the host
	if !ok {
		faults += fmt.Sprintf(textNoParameter, "SignedHeaders")
	}
	s.headers = signedHeaders(names)
	if s.time = h.Get("X-Amz-Date"); s.time == "" {
		s.time = h.Get("Date")
	}
	if s.time == "" {
		faults += textNoDate
	}
	if faults != "" {
		return fault.New(fault.IncompleteSignatureException, "%s", faults+"Authorization="+authorization)
	}
	return nil
}

// parseAuthorization reads name=value pairs with commas, spaces or both between them.
func parseAuthorization(s string) map[string]string {
	given := make(map[string]string, 3)
	for field := range strings.FieldsFuncSeq(s, func(c rune) bool { return c == ',' || c == ' ' || c == '\t' }) {
		if name, value, ok := strings.Cut(field, "="); ok {
			given[name] = value
		}
	}
	return given
}

// readQuery reads the parameters of a presigned request.
func (s *signature) readQuery() error {
	s.presigned = true
	var faults, names string
	for _, p := range []struct {
		name string
		into *string
	}{
		{"X-Amz-Algorithm", &s.algorithm},
		{"X-Amz-Credential", &s.credential},
		{"X-Amz-Signature", &s.signature},
		{"X-Amz-SignedHeaders", &names},
		{"X-Amz-Date", &s.time},
	} {
		if *p.into, _ = s.parameter(p.name); *p.into == "" {
			faults += fmt.Sprintf(textNoQueryParameter, p.name)
		}
	}
	if faults != "" {
		return fault.New(fault.IncompleteSignatureException, "%s", faults+textQuery)
	}
	s.headers = signedHeaders(names)
	s.expires, _ = s.parameter("X-Amz-Expires")
	s.token, _ = s.parameter("X-Amz-Security-Token")
	return nil
}

func signedHeaders(list string) []string {
	if list == "" {
		return nil
	}
	names := strings.Split(strings.ToLower(list), ";")
	slices.Sort(names)
	return names
}

// parameter returns the first parameter of that name.
func (s *signature) parameter(name string) (string, bool) {
	for _, p := range s.query {
		if p.name == name {
			return p.value, true
		}
	}
	return "", false
}

// parseQuery reads any query: what is not well escaped stands for itself.
func parseQuery(raw string) []pair {
	if raw == "" {
		return nil
	}
	var pairs []pair
	for part := range strings.SplitSeq(raw, "&") {
		if part == "" {
			continue
		}
		name, value, _ := strings.Cut(part, "=")
		pairs = append(pairs, pair{unescape(name), unescape(value)})
	}
	return pairs
}

func unescape(s string) string {
	u, err := url.QueryUnescape(s)
	if err != nil {
		return s
	}
	return u
}
