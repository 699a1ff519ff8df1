package policy

import "strings"

// Request is what somebody wants to do with one resource. A call that touches several
// resources is several requests.
type Request struct {
	// Action is an operation, such as "dynamodb:GetItem".
	Action string
	// Resource is an ARN, or "*" for an operation that has no resource.
	Resource string
	// Context has what conditions may ask for. A key without values is as one that
	// is not there; only keys that can have several values are given more than one.
	Context map[Key][]string
}

// Decision is the answer to a Request.
type Decision int

// The decisions. The zero value is a refusal.
const (
	ImplicitDeny Decision = iota // no statement allows it
	ExplicitDeny                 // a statement denies it
	Allowed
)

func (d Decision) String() string {
	switch d {
	case Allowed:
		return "allowed"
	case ExplicitDeny:
		return "explicitly denied"
	}
	return "implicitly denied"
}

// Policy is a document that [Parse] has accepted. It is immutable; the zero value
// allows nothing.
type Policy struct {
	statements []statement
}

// Decide evaluates all policies of a principal together.
func Decide(r Request, policies ...*Policy) Decision {
	d := ImplicitDeny
	action := strings.ToLower(r.Action)
	arn := splitARN(r.Resource)
	for _, p := range policies {
		for i := range p.statements {
			s := &p.statements[i]
			if !s.applies(r, action, arn) {
				continue
			}
			if s.deny {
				return ExplicitDeny
			}
			d = Allowed
		}
	}
	return d
}

// statement is one entry of a policy.
type statement struct {
	deny        bool
	actions     []pattern // in lower case
	notAction   bool
	resources   []resource
	notResource bool
	conditions  []condition
}

func (s *statement) applies(r Request, action string, arn []string) bool {
	found := no
	for _, p := range s.actions {
		found = found.or(p.match(action, nil))
	}
	if !s.holds(found, s.notAction) {
		return false
	}
	found = no
	for i := range s.resources {
		found = found.or(s.resources[i].match(arn, r.Context))
	}
	if !s.holds(found, s.notResource) {
		return false
	}
	for i := range s.conditions {
		if !s.conditions[i].holds(s, r.Context) {
			return false
		}
	}
	return true
}

// found is whether one of several patterns matched.
type found int

const (
	no found = iota
	// open is no match, but of a pattern with a variable that has no value.
	open
	yes
)

func (f found) or(g found) found { return max(f, g) }

// holds turns what was found around for NotAction, NotResource and the operators with
// a Not. A variable without a value must never help anybody to more access, so there
// it depends on what the statement is for.
func (s *statement) holds(f found, negated bool) bool {
	switch {
	case !negated:
		return f == yes
	case f == open:
		return s.deny
	}
	return f == no
}

// resource is a pattern of ARNs, matched part by part: a star does not reach across a
// colon, except in the last part, which may have some itself.
type resource struct {
	all   bool // "*"
	parts [arnParts]pattern
}

// arnParts are arn, partition, service, region, account, and the resource proper.
const arnParts = 6

// splitARN returns nil for what is no ARN.
func splitARN(s string) []string {
	parts := strings.SplitN(s, ":", arnParts)
	if len(parts) < arnParts || parts[0] != "arn" {
		return nil
	}
	return parts
}

func (p *resource) match(arn []string, context map[Key][]string) found {
	switch {
	case p.all:
		return yes
	case arn == nil:
		return no
	}
	all := yes
	for i, part := range p.parts {
		all = min(all, part.match(arn[i], context))
	}
	return all
}
