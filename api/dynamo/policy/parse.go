package policy

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// MaxBytes bounds a policy. AWS's largest managed policy has 6,144 characters.
const MaxBytes = 20 << 10

// Parse reads a policy. The error says what is wrong with it, for whoever wrote it.
func Parse(document []byte) (*Policy, error) {
	if len(document) > MaxBytes {
		return nil, fmt.Errorf("policy: longer than %d bytes", MaxBytes)
	}
	p, err := parse(document)
	if err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	return p, nil
}

func parse(document []byte) (*Policy, error) {
	top, err := members(document, "Version", "Id", "Statement")
	if err != nil {
		return nil, err
	}
	variables, err := parseVersion(top["Version"])
	if err != nil {
		return nil, err
	}
	if id := top["Id"]; id != nil && id.Kind() != '"' {
		return nil, errors.New("the Id is not a string")
	}
	var list []jsontext.Value
	switch s := top["Statement"]; s.Kind() {
	case '{':
		list = []jsontext.Value{s}
	case '[':
		err = json.Unmarshal(s, &list)
	default:
		err = errors.New("the Statement is neither an object nor an array of objects")
	}
	if err == nil && len(list) == 0 {
		err = errors.New("the Statement is empty")
	}
	if err != nil {
		return nil, err
	}
	p := &Policy{}
	sids := map[string]bool{}
	for i, v := range list {
		s, sid, err := parseStatement(v, variables)
		if err != nil {
			return nil, fmt.Errorf("statement %d: %w", i+1, err)
		}
		if sid != "" && sids[sid] {
			return nil, fmt.Errorf("statement %d: Sid %q is not unique", i+1, sid)
		}
		sids[sid] = true
		p.statements = append(p.statements, s)
	}
	return p, nil
}

// parseVersion tells whether the version has variables.
func parseVersion(v jsontext.Value) (variables bool, err error) {
	if v == nil {
		return false, nil
	}
	version, err := parseString(v)
	switch {
	case err != nil || version != "2012-10-17" && version != "2008-10-17":
		return false, errors.New("the Version is neither 2012-10-17 nor 2008-10-17")
	}
	return version == "2012-10-17", nil
}

func parseStatement(v jsontext.Value, variables bool) (s statement, sid string, err error) {
	m, err := members(v, "Sid", "Effect", "Action", "NotAction", "Resource", "NotResource", "Condition")
	if err != nil {
		return s, "", err
	}
	if m["Sid"] != nil {
		sid, err = parseString(m["Sid"])
		if err != nil || strings.ContainsFunc(sid, func(c rune) bool { return !alphanumeric(c) }) {
			return s, "", errors.New("the Sid is not made of letters and digits")
		}
	}
	switch effect, _ := parseString(m["Effect"]); effect {
	case "Allow":
	case "Deny":
		s.deny = true
	default:
		return s, "", errors.New("the Effect is neither Allow nor Deny")
	}
	actions, notAction, err := either(m, "Action", "NotAction")
	if err != nil {
		return s, "", err
	}
	s.notAction = notAction
	for _, a := range actions {
		p, err := parseAction(a)
		if err != nil {
			return s, "", err
		}
		s.actions = append(s.actions, p)
	}
	resources, notResource, err := either(m, "Resource", "NotResource")
	if err != nil {
		return s, "", err
	}
	s.notResource = notResource
	for _, r := range resources {
		p, err := parseResource(r, variables)
		if err != nil {
			return s, "", err
		}
		s.resources = append(s.resources, p)
	}
	s.conditions, err = parseConditions(m["Condition"], variables)
	return s, sid, err
}

// either returns the values of an element or of its opposite; one must be there.
func either(m map[string]jsontext.Value, name, opposite string) (values []string, isOpposite bool, err error) {
	switch {
	case m[name] != nil && m[opposite] != nil:
		return nil, false, fmt.Errorf("both %s and %s", name, opposite)
	case m[opposite] != nil:
		values, err = parseStrings(m[opposite], opposite)
		return values, true, err
	case m[name] != nil:
		values, err = parseStrings(m[name], name)
		return values, false, err
	}
	return nil, false, fmt.Errorf("neither %s nor %s", name, opposite)
}

func parseAction(s string) (pattern, error) {
	service, operation, ok := strings.Cut(s, ":")
	bad := func(c rune) bool { return !alphanumeric(c) && c != '-' }
	badOperation := func(c rune) bool { return !alphanumeric(c) && c != '*' && c != '?' }
	if s != "*" && (!ok || service == "" || operation == "" ||
		strings.ContainsFunc(service, bad) || strings.ContainsFunc(operation, badOperation)) {
		return nil, fmt.Errorf("action %q is neither * nor a service, a colon and an operation", s)
	}
	return parsePattern(strings.ToLower(s), true, false)
}

func alphanumeric(c rune) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

func parseResource(s string, variables bool) (resource, error) {
	if s == "*" {
		return resource{all: true}, nil
	}
	if !strings.HasPrefix(s, "arn:") {
		return resource{}, fmt.Errorf("resource %q is neither * nor an ARN", s)
	}
	p, err := parsePattern(s, true, variables)
	if err != nil {
		return resource{}, fmt.Errorf("resource %w", err)
	}
	var r resource
	for i := range r.parts {
		end := slices.Index(p, element{symbol: ':'})
		switch {
		case p == nil: // parts that an ARN lacks may be anything
			r.parts[i] = pattern{{symbol: anyMany}}
		case i == arnParts-1 || end < 0:
			r.parts[i], p = p, nil
		default:
			r.parts[i], p = p[:end], p[end+1:]
		}
	}
	return r, nil
}

func parseConditions(v jsontext.Value, variables bool) ([]condition, error) {
	if v == nil {
		return nil, nil
	}
	byOperator, err := members(v)
	if err != nil {
		return nil, fmt.Errorf("condition: %w", err)
	}
	var all []condition
	for _, operator := range slices.Sorted(maps.Keys(byOperator)) {
		byKey, err := members(byOperator[operator])
		if err != nil {
			return nil, fmt.Errorf("condition: %q: %w", operator, err)
		}
		for _, key := range slices.Sorted(maps.Keys(byKey)) {
			values, err := parseStrings(byKey[key], key)
			if err != nil {
				return nil, fmt.Errorf("condition: %q: %w", operator, err)
			}
			c, err := newCondition(operator, key, values, variables)
			if err != nil {
				return nil, fmt.Errorf("condition: %w", err)
			}
			all = append(all, c)
		}
	}
	return all, nil
}

// members reads an object. If names are given, it may have no others.
func members(v jsontext.Value, names ...string) (map[string]jsontext.Value, error) {
	var m map[string]jsontext.Value
	if v.Kind() != '{' {
		return nil, errors.New("not a JSON object")
	}
	if err := json.Unmarshal(v, &m); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if names != nil && !slices.Contains(names, name) {
			return nil, fmt.Errorf("unknown element %q", name)
		}
	}
	return m, nil
}

// parseStrings reads one value or an array of them, at least one. A number or a
// boolean stands for its text.
func parseStrings(v jsontext.Value, name string) ([]string, error) {
	list := []jsontext.Value{v}
	if v.Kind() == '[' {
		list = nil
		if err := json.Unmarshal(v, &list); err != nil {
			return nil, err
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s is empty", name)
	}
	values := make([]string, len(list))
	for i, v := range list {
		var err error
		switch v.Kind() {
		case 't', 'f', '0':
			values[i] = string(v)
		default:
			if values[i], err = parseString(v); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return values, nil
}

func parseString(v jsontext.Value) (string, error) {
	if v.Kind() != '"' {
		return "", errors.New("not a string")
	}
	var s string
	err := json.Unmarshal(v, &s)
	return s, err
}
