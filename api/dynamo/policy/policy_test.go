package policy

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

const table = "arn:aws:dynamodb:eu-west-1:123456789012:table/Games"

func mustParse(t testing.TB, document string) *Policy {
	t.Helper()
	p, err := Parse([]byte(document))
	if err != nil {
		t.Fatalf("%v: %s", err, document)
	}
	return p
}

// statementOf is a policy of one statement with this condition.
func statementOf(t testing.TB, effect, condition string) *Policy {
	t.Helper()
	return mustParse(t, fmt.Sprintf(`{"Version": "2012-10-17", "Statement": {"Effect": %q, "Action": "*", "Resource": "*", "Condition": %s}}`, effect, condition))
}

func TestActionsAndResources(t *testing.T) {
	for _, tt := range []struct {
		statement        string
		action, resource string
		want             bool
	}{
		{`"Action": "dynamodb:GetItem", "Resource": "*"`, "dynamodb:GetItem", table, true},
		{`"Action": "dynamodb:GetItem", "Resource": "*"`, "dynamodb:GetItem", "*", true},
		{`"Action": "dynamodb:GETITEM", "Resource": "*"`, "dynamodb:GetItem", table, true},
		{`"Action": "dynamodb:GetItem", "Resource": "*"`, "dynamodb:GetItems", table, false},
		{`"Action": "dynamodb:Get", "Resource": "*"`, "dynamodb:GetItem", table, false},
		{`"Action": "dynamodb:*Item", "Resource": "*"`, "dynamodb:BatchGetItem", table, true},
		{`"Action": "dynamodb:?etItem", "Resource": "*"`, "dynamodb:GetItem", table, true},
		{`"Action": "dynamodb:?GetItem", "Resource": "*"`, "dynamodb:GetItem", table, false},
		{`"Action": "*", "Resource": "*"`, "dynamodb:GetItem", table, true},
		{`"Action": "s3:*", "Resource": "*"`, "dynamodb:GetItem", table, false},
		{`"Action": ["s3:*", "dynamodb:Query", "dynamodb:Scan"], "Resource": "*"`, "dynamodb:Query", table, true},
		{`"NotAction": ["s3:*", "dynamodb:Delete*"], "Resource": "*"`, "dynamodb:Query", table, true},
		{`"NotAction": ["s3:*", "dynamodb:Delete*"], "Resource": "*"`, "dynamodb:DeleteTable", table, false},

		{`"Action": "*", "Resource": "` + table + `"`, "dynamodb:Query", table, true},
		{`"Action": "*", "Resource": "` + table + `"`, "dynamodb:Query", table + "/index/i", false},
		{`"Action": "*", "Resource": ["` + table + `", "` + table + `/*"]`, "dynamodb:Query", table + "/index/i", true},
		{`"Action": "*", "Resource": "` + table + `/stream/*"`, "dynamodb:GetRecords", table + "/stream/2026-03-01T12:00:00.000", true},
		{`"Action": "*", "Resource": "` + table + `/stream/2026-03-01T??:00:00.000"`, "dynamodb:GetRecords", table + "/stream/2026-03-01T12:00:00.000", true},
		{`"Action": "*", "Resource": "` + strings.ToLower(table) + `"`, "dynamodb:Query", table, false},
		{`"Action": "*", "Resource": "arn:aws:dynamodb:*:*:table/G?mes"`, "dynamodb:Query", table, true},
		{`"Action": "*", "Resource": "arn:aws:dynamodb:*:table/Games"`, "dynamodb:Query", table, false},
		{`"Action": "*", "Resource": "arn:aws:dynamodb:*:*"`, "dynamodb:Query", table, true},
		{`"Action": "*", "Resource": "arn:aws:dynamodb"`, "dynamodb:Query", table, true},
		{`"Action": "*", "Resource": "arn:aws:s3"`, "dynamodb:Query", table, false},
		{`"Action": "*", "Resource": "arn:*"`, "dynamodb:ListTables", "*", false},
		{`"Action": "*", "Resource": "arn:*"`, "dynamodb:Query", table, true},
		{`"Action": "*", "NotResource": "` + table + `"`, "dynamodb:Query", table, false},
		{`"Action": "*", "NotResource": "` + table + `"`, "dynamodb:Query", table + "2", true},
		{`"Action": "*", "NotResource": "` + table + `"`, "dynamodb:ListTables", "*", true},
	} {
		for effect, decision := range map[string]Decision{"Allow": Allowed, "Deny": ExplicitDeny} {
			p := mustParse(t, `{"Statement": [{"Effect": "`+effect+`", `+tt.statement+`}]}`)
			want := ImplicitDeny
			if tt.want {
				want = decision
			}
			if got := Decide(Request{Action: tt.action, Resource: tt.resource}, p); got != want {
				t.Errorf("%s %s: %s on %s is %s", effect, tt.statement, tt.action, tt.resource, got)
			}
		}
	}
}

func TestConditions(t *testing.T) {
	type values = map[Key][]string
	for _, tt := range []struct {
		condition string
		context   values
		want      bool
	}{
		{`{}`, nil, true},
		{`{"StringEquals": {"dynamodb:Select": "COUNT"}}`, values{Select: {"COUNT"}}, true},
		{`{"StringEquals": {"DYNAMODB:select": "COUNT"}}`, values{Select: {"COUNT"}}, true},
		{`{"StringEquals": {"dynamodb:Select": "COUNT"}}`, values{Select: {"count"}}, false},
		{`{"StringEquals": {"dynamodb:Select": ["COUNT", "ALL_ATTRIBUTES"]}}`, values{Select: {"ALL_ATTRIBUTES"}}, true},
		{`{"StringEquals": {"dynamodb:Select": "*"}}`, values{Select: {"COUNT"}}, false},
		{`{"StringEquals": {"dynamodb:Select": "COUNT"}}`, nil, false},
		{`{"StringEqualsIfExists": {"dynamodb:Select": "COUNT"}}`, nil, true},
		{`{"StringEqualsIfExists": {"dynamodb:Select": "COUNT"}}`, values{Select: {"ALL_ATTRIBUTES"}}, false},
		{`{"StringNotEquals": {"dynamodb:Select": ["COUNT", "ALL_ATTRIBUTES"]}}`, values{Select: {"COUNT"}}, false},
		{`{"StringNotEquals": {"dynamodb:Select": ["COUNT", "ALL_ATTRIBUTES"]}}`, values{Select: {"SPECIFIC_ATTRIBUTES"}}, true},
		{`{"StringNotEquals": {"dynamodb:Select": "COUNT"}}`, nil, true},
		{`{"StringEqualsIgnoreCase": {"dynamodb:Select": "count"}}`, values{Select: {"COUNT"}}, true},
		{`{"StringNotEqualsIgnoreCase": {"dynamodb:Select": "count"}}`, values{Select: {"COUNT"}}, false},
		{`{"StringLike": {"aws:UserAgent": "aws-sdk-?o*"}}`, values{UserAgent: {"aws-sdk-go/2"}}, true},
		{`{"StringLike": {"aws:UserAgent": "aws-sdk-?o"}}`, values{UserAgent: {"aws-sdk-go/2"}}, false},
		{`{"StringNotLike": {"aws:UserAgent": "aws-*"}}`, values{UserAgent: {"curl"}}, true},

		// Two operators and two keys must all hold.
		{`{"StringEquals": {"dynamodb:Select": "COUNT", "dynamodb:ReturnValues": "NONE"}}`, values{Select: {"COUNT"}, ReturnValues: {"NONE"}}, true},
		{`{"StringEquals": {"dynamodb:Select": "COUNT", "dynamodb:ReturnValues": "NONE"}}`, values{Select: {"COUNT"}, ReturnValues: {"ALL_OLD"}}, false},
		{`{"StringEquals": {"dynamodb:Select": "COUNT"}, "Bool": {"aws:SecureTransport": true}}`, values{Select: {"COUNT"}, SecureTransport: {"false"}}, false},

		{`{"ForAllValues:StringEquals": {"dynamodb:LeadingKeys": ["a", "b"]}}`, values{LeadingKeys: {"a", "b", "a"}}, true},
		{`{"ForAllValues:StringEquals": {"dynamodb:LeadingKeys": ["a", "b"]}}`, values{LeadingKeys: {"a", "c"}}, false},
		{`{"ForAllValues:StringEquals": {"dynamodb:LeadingKeys": ["a", "b"]}}`, nil, true},
		{`{"ForAllValues:StringLike": {"dynamodb:LeadingKeys": "a*"}}`, values{LeadingKeys: {"a", "ab"}}, true},
		{`{"ForAllValues:StringNotEquals": {"dynamodb:LeadingKeys": ["a", "b"]}}`, values{LeadingKeys: {"c", "d"}}, true},
		{`{"ForAllValues:StringNotEquals": {"dynamodb:LeadingKeys": ["a", "b"]}}`, values{LeadingKeys: {"c", "b"}}, false},
		{`{"ForAnyValue:StringEquals": {"dynamodb:LeadingKeys": ["a", "b"]}}`, values{LeadingKeys: {"c", "b"}}, true},
		{`{"ForAnyValue:StringEquals": {"dynamodb:LeadingKeys": ["a", "b"]}}`, values{LeadingKeys: {"c"}}, false},
		{`{"ForAnyValue:StringEquals": {"dynamodb:LeadingKeys": ["a", "b"]}}`, nil, false},
		{`{"ForAnyValue:StringEqualsIfExists": {"dynamodb:LeadingKeys": ["a", "b"]}}`, nil, true},
		{`{"ForAnyValue:StringEqualsIfExists": {"dynamodb:LeadingKeys": ["a", "b"]}}`, values{LeadingKeys: {"c"}}, false},
		{`{"ForAnyValue:StringNotEquals": {"dynamodb:LeadingKeys": ["a", "b"]}}`, values{LeadingKeys: {"a", "c"}}, true},
		{`{"ForAnyValue:StringNotEquals": {"dynamodb:LeadingKeys": ["a", "b"]}}`, values{LeadingKeys: {"a", "b"}}, false},
		{`{"ForAnyValue:StringNotEquals": {"dynamodb:LeadingKeys": "a"}}`, nil, false},

		{`{"Null": {"dynamodb:LeadingKeys": "true"}}`, nil, true},
		{`{"Null": {"dynamodb:LeadingKeys": true}}`, values{LeadingKeys: {}}, true},
		{`{"Null": {"dynamodb:LeadingKeys": "true"}}`, values{LeadingKeys: {"a"}}, false},
		{`{"Null": {"dynamodb:LeadingKeys": ["False"]}}`, values{LeadingKeys: {"a"}}, true},
		{`{"Null": {"aws:SourceIp": false}}`, nil, false},

		{`{"Bool": {"aws:SecureTransport": "TRUE"}}`, values{SecureTransport: {"true"}}, true},
		{`{"Bool": {"dynamodb:FullTableScan": false}}`, values{FullTableScan: {"true"}}, false},
		{`{"BoolIfExists": {"dynamodb:FullTableScan": false}}`, nil, true},
		{`{"Bool": {"dynamodb:FullTableScan": false}}`, values{FullTableScan: {"?"}}, false},

		{`{"IpAddress": {"aws:SourceIp": "203.0.113.0/24"}}`, values{SourceIP: {"203.0.113.7"}}, true},
		{`{"IpAddress": {"aws:SourceIp": "203.0.113.0/24"}}`, values{SourceIP: {"203.0.114.7"}}, false},
		{`{"IpAddress": {"aws:SourceIp": "203.0.113.7"}}`, values{SourceIP: {"203.0.113.7"}}, true},
		{`{"IpAddress": {"aws:SourceIp": "203.0.113.7"}}`, values{SourceIP: {"::ffff:203.0.113.7"}}, true},
		{`{"IpAddress": {"aws:SourceIp": ["10.0.0.0/8", "2001:db8::/32"]}}`, values{SourceIP: {"2001:db8:1::1"}}, true},
		{`{"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}`, values{SourceIP: {"a name"}}, false},
		{`{"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}`, nil, false},
		{`{"NotIpAddress": {"aws:SourceIp": ["10.0.0.0/8", "192.168.0.0/16"]}}`, values{SourceIP: {"192.168.3.4"}}, false},
		{`{"NotIpAddress": {"aws:SourceIp": ["10.0.0.0/8", "192.168.0.0/16"]}}`, values{SourceIP: {"203.0.113.7"}}, true},
		{`{"StringEquals": {"aws:SourceIp": "203.0.113.7"}}`, values{SourceIP: {"203.0.113.7"}}, true},

		{`{"DateLessThan": {"aws:CurrentTime": "2026-03-01T12:00:00Z"}}`, values{CurrentTime: {"2026-03-01T12:59:59+01:00"}}, true},
		{`{"DateLessThan": {"aws:CurrentTime": "2026-03-01"}}`, values{CurrentTime: {"2026-03-01T00:00:00Z"}}, false},
		{`{"DateLessThanEquals": {"aws:CurrentTime": "2026-03-01"}}`, values{CurrentTime: {"2026-03-01T00:00:00Z"}}, true},
		{`{"DateGreaterThan": {"aws:CurrentTime": 1772323200}}`, values{CurrentTime: {"2026-03-01T00:00:01Z"}}, true},
		{`{"DateGreaterThan": {"aws:CurrentTime": 1772323200}}`, values{CurrentTime: {"2026-03-01T00:00:00Z"}}, false},
		{`{"DateGreaterThanEquals": {"aws:CurrentTime": 1772323200}}`, values{CurrentTime: {"2026-03-01T00:00:00Z"}}, true},
		{`{"DateEquals": {"aws:CurrentTime": 1772323200}}`, values{CurrentTime: {"2026-03-01T00:00:00Z"}}, true},
		{`{"DateNotEquals": {"aws:CurrentTime": 1772323200}}`, values{CurrentTime: {"2026-03-01T00:00:00Z"}}, false},
		{`{"DateEquals": {"aws:CurrentTime": 1772323200}}`, values{CurrentTime: {"soon"}}, false},

		{`{"StringEquals": {"aws:userid": "${aws:username}"}}`, values{UserID: {"ann"}, UserName: {"ann"}}, true},
		{`{"StringLike": {"aws:userid": "x-${AWS:username}-*"}}`, values{UserID: {"x-ann-1"}, UserName: {"ann"}}, true},
		{`{"StringLike": {"aws:userid": "${aws:username}"}}`, values{UserID: {"bob"}, UserName: {"*"}}, false},
		{`{"StringEquals": {"aws:userid": "${aws:username}"}}`, values{UserID: {""}}, false},
		{`{"StringEquals": {"aws:userid": "${aws:username, 'nobody'}"}}`, values{UserID: {"nobody"}}, true},
		{`{"StringEquals": {"aws:userid": "${aws:username, 'nobody'}"}}`, values{UserID: {"nobody"}, UserName: {"ann"}}, false},
		{`{"StringLike": {"aws:userid": "a${*}b${?}${$}*"}}`, values{UserID: {"a*b?$x"}}, true},
		{`{"StringLike": {"aws:userid": "a${*}b"}}`, values{UserID: {"axb"}}, false},
		{`{"StringEquals": {"aws:userid": ["${aws:username}", "b"]}}`, values{UserID: {"b"}}, true},
	} {
		r := Request{Action: "dynamodb:Query", Resource: table, Context: tt.context}
		for effect, decision := range map[string]Decision{"Allow": Allowed, "Deny": ExplicitDeny} {
			want := ImplicitDeny
			if tt.want {
				want = decision
			}
			if got := Decide(r, statementOf(t, effect, tt.condition)); got != want {
				t.Errorf("%s if %s, with %v: %s", effect, tt.condition, tt.context, got)
			}
		}
	}
}

// TestVariableWithoutAValueNeverHelps: where it makes a difference, an allowing
// statement does not apply and a denying one does.
func TestVariableWithoutAValueNeverHelps(t *testing.T) {
	for _, part := range []string{
		`"Resource": "*", "Condition": {"StringNotEquals": {"aws:userid": "${aws:username}"}}`,
		`"Resource": "*", "Condition": {"ForAllValues:StringNotLike": {"aws:userid": "${aws:username}*"}}`,
		`"NotResource": "arn:aws:dynamodb:*:*:table/${aws:username}"`,
	} {
		for effect, want := range map[string]Decision{"Allow": ImplicitDeny, "Deny": ExplicitDeny} {
			p := mustParse(t, `{"Version": "2012-10-17", "Statement": {"Effect": "`+effect+`", "Action": "*", `+part+`}}`)
			if got := Decide(Request{Action: "dynamodb:Query", Resource: table, Context: map[Key][]string{UserID: {"u"}}}, p); got != want {
				t.Errorf("%s with %s: %s", effect, part, got)
			}
		}
	}
}

func TestVariablesInResources(t *testing.T) {
	const statement = `"Statement": {"Effect": "Allow", "Action": "*", "Resource": ["arn:aws:dynamodb:*:*:table/${aws:username}", "arn:aws:dynamodb:*:*:table/shared"]}}`
	p := mustParse(t, `{"Version": "2012-10-17", `+statement)
	old := mustParse(t, `{"Version": "2008-10-17", `+statement)
	oldest := mustParse(t, `{`+statement)
	for _, tt := range []struct {
		policy      *Policy
		table, user string
		want        Decision
	}{
		{p, "ann", "ann", Allowed},
		{p, "bob", "ann", ImplicitDeny},
		{p, "bob", "*", ImplicitDeny},
		{p, "", "", ImplicitDeny},
		{p, "shared", "", Allowed},
		{old, "ann", "ann", ImplicitDeny},
		{old, "${aws:username}", "ann", Allowed},
		{oldest, "ann", "ann", ImplicitDeny},
	} {
		r := Request{Action: "dynamodb:GetItem", Resource: "arn:aws:dynamodb:r:1:table/" + tt.table}
		if tt.user != "" {
			r.Context = map[Key][]string{UserName: {tt.user}}
		}
		if got := Decide(r, tt.policy); got != tt.want {
			t.Errorf("table %q for %q: %s", tt.table, tt.user, got)
		}
	}
}

// TestDocumentedExample is the policy of the developer guide on fine-grained access:
// own items, some attributes, and no way to see the others by return values.
func TestDocumentedExample(t *testing.T) {
	p := mustParse(t, `{
		"Version": "2012-10-17",
		"Statement": [{
			"Sid": "LimitAccessToSpecificAttributes",
			"Effect": "Allow",
			"Action": ["dynamodb:UpdateItem", "dynamodb:GetItem", "dynamodb:Query", "dynamodb:BatchGetItem", "dynamodb:Scan"],
			"Resource": ["`+table+`"],
			"Condition": {
				"ForAllValues:StringEquals": {
					"dynamodb:LeadingKeys": ["${aws:username}"],
					"dynamodb:Attributes": ["UserId", "GameTitle", "Wins"]
				},
				"StringEqualsIfExists": {
					"dynamodb:Select": "SPECIFIC_ATTRIBUTES",
					"dynamodb:ReturnValues": ["NONE", "UPDATED_OLD", "UPDATED_NEW"]
				}
			}
		}]
	}`)
	own := map[Key][]string{UserName: {"ann"}, LeadingKeys: {"ann"}, Attributes: {"UserId", "Wins"}}
	with := func(k Key, values ...string) map[Key][]string {
		m := map[Key][]string{k: values}
		for name, values := range own {
			if name != k {
				m[name] = values
			}
		}
		return m
	}
	for _, tt := range []struct {
		action  string
		context map[Key][]string
		want    Decision
	}{
		{"dynamodb:GetItem", own, Allowed},
		{"dynamodb:PutItem", own, ImplicitDeny},
		{"dynamodb:GetItem", with(LeadingKeys, "bob"), ImplicitDeny},
		{"dynamodb:BatchGetItem", with(LeadingKeys, "ann", "bob"), ImplicitDeny},
		{"dynamodb:GetItem", with(Attributes, "UserId", "Losses"), ImplicitDeny},
		{"dynamodb:Query", with(Select, "ALL_ATTRIBUTES"), ImplicitDeny},
		{"dynamodb:Query", with(Select, "SPECIFIC_ATTRIBUTES"), Allowed},
		{"dynamodb:UpdateItem", with(ReturnValues, "UPDATED_NEW"), Allowed},
		{"dynamodb:UpdateItem", with(ReturnValues, "ALL_OLD"), ImplicitDeny},
	} {
		if got := Decide(Request{Action: tt.action, Resource: table, Context: tt.context}, p); got != tt.want {
			t.Errorf("%s with %v: %s", tt.action, tt.context, got)
		}
	}
}

// TestEvaluationLogic: an explicit deny wins wherever it stands, and what nobody
// allows is denied.
func TestEvaluationLogic(t *testing.T) {
	allow := `{"Effect": "Allow", "Action": "dynamodb:*", "Resource": "*"}`
	deny := `{"Effect": "Deny", "Action": "dynamodb:Delete*", "Resource": "*"}`
	one := func(statements ...string) *Policy {
		return mustParse(t, `{"Statement": [`+strings.Join(statements, ", ")+`]}`)
	}
	for _, tt := range []struct {
		policies []*Policy
		action   string
		want     Decision
	}{
		{nil, "dynamodb:GetItem", ImplicitDeny},
		{[]*Policy{{}}, "dynamodb:GetItem", ImplicitDeny},
		{[]*Policy{one(deny)}, "dynamodb:GetItem", ImplicitDeny},
		{[]*Policy{one(allow)}, "dynamodb:GetItem", Allowed},
		{[]*Policy{one(allow, deny)}, "dynamodb:GetItem", Allowed},
		{[]*Policy{one(allow, deny)}, "dynamodb:DeleteItem", ExplicitDeny},
		{[]*Policy{one(deny, allow)}, "dynamodb:DeleteItem", ExplicitDeny},
		{[]*Policy{one(deny), one(allow)}, "dynamodb:DeleteItem", ExplicitDeny},
		{[]*Policy{one(allow), one(deny)}, "dynamodb:DeleteItem", ExplicitDeny},
	} {
		if got := Decide(Request{Action: tt.action, Resource: table}, tt.policies...); got != tt.want {
			t.Errorf("%s by %d policies: %s, want %s", tt.action, len(tt.policies), got, tt.want)
		}
	}
}

func TestRefusedDocuments(t *testing.T) {
	good := `{"Effect": "Allow", "Action": "*", "Resource": "*"}`
	condition := func(c string) string {
		return `{"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "*", "Resource": "*", "Condition": ` + c + `}}`
	}
	statement := func(s string) string { return `{"Version": "2012-10-17", "Statement": {` + s + `}}` }
	for document, want := range map[string]string{
		``:                          "not a JSON object",
		`[]`:                        "not a JSON object",
		`{`:                         "EOF",
		`{} x`:                      "after top-level value",
		`{"Statement": ` + good:     "EOF",
		`{"Version": "2012-10-17"}`: "Statement is neither",
		`{"Statement": []}`:         "Statement is empty",
		`{"Statement": [1]}`:        "statement 1: not a JSON object",
		`{"Statement": "x"}`:        "Statement is neither",
		`{"Version": "2012-10-18", "Statement": ` + good + `}`:                                                                                             "Version is neither",
		`{"Version": null, "Statement": ` + good + `}`:                                                                                                     "Version is neither",
		`{"Version": 2012, "Statement": ` + good + `}`:                                                                                                     "Version is neither",
		`{"Id": 1, "Statement": ` + good + `}`:                                                                                                             "Id is not a string",
		`{"id": "", "Statement": ` + good + `}`:                                                                                                            `unknown element "id"`,
		`{"Statement": ` + good + `, "Statement": ` + good + `}`:                                                                                           "duplicate",
		`{"Statement": [` + good + `, {"Effect": "allow"}]}`:                                                                                               "statement 2: the Effect is neither",
		statement(`"Action": "*", "Resource": "*"`):                                                                                                        "Effect is neither",
		statement(`"Effect": "Allow", "Resource": "*"`):                                                                                                    "neither Action nor NotAction",
		statement(`"Effect": "Allow", "Action": "*"`):                                                                                                      "neither Resource nor NotResource",
		statement(`"Effect": "Allow", "Action": "*", "NotAction": "*", "Resource": "*"`):                                                                   "both Action and NotAction",
		statement(`"Effect": "Allow", "Action": "*", "Resource": "*", "NotResource": "*"`):                                                                 "both Resource and NotResource",
		statement(`"Effect": "Allow", "Action": [], "Resource": "*"`):                                                                                      "Action is empty",
		statement(`"Effect": "Allow", "Action": "*", "Resource": []`):                                                                                      "Resource is empty",
		statement(`"Effect": "Allow", "Action": {}, "Resource": "*"`):                                                                                      "Action: not a string",
		statement(`"Effect": "Allow", "Action": "GetItem", "Resource": "*"`):                                                                               `action "GetItem"`,
		statement(`"Effect": "Allow", "Action": "*:GetItem", "Resource": "*"`):                                                                             `action "*:GetItem"`,
		statement(`"Effect": "Allow", "Action": "dynamodb:", "Resource": "*"`):                                                                             `action "dynamodb:"`,
		statement(`"Effect": "Allow", "Action": "dynamodb:${aws:username}", "Resource": "*"`):                                                              "action ",
		statement(`"Effect": "Allow", "Action": "*", "Resource": "table/x"`):                                                                               `resource "table/x"`,
		statement(`"Effect": "Allow", "Action": "*", "Resource": "arn:aws:dynamodb:::table/${aws:x}"`):                                                     `unknown variable "aws:x"`,
		statement(`"Effect": "Allow", "Action": "*", "Resource": "arn:aws:dynamodb:::table/${aws:username"`):                                               "${ without }",
		statement(`"Effect": "Allow", "Action": "*", "Resource": "*", "Principal": "*"`):                                                                   `unknown element "Principal"`,
		statement(`"Effect": "Allow", "Action": "*", "Resource": "*", "condition": {}`):                                                                    `unknown element "condition"`,
		statement(`"Effect": "Allow", "Action": "*", "Resource": "*", "Sid": "a b"`):                                                                       "Sid is not",
		`{"Statement": [{"Sid": "a", "Effect": "Allow", "Action": "*", "Resource": "*"}, {"Sid": "a", "Effect": "Deny", "Action": "*", "Resource": "*"}]}`: `Sid "a" is not unique`,
		condition(`[]`):                                                                      "condition: not a JSON object",
		condition(`{"StringEquals": "x"}`):                                                   `condition: "StringEquals": not a JSON object`,
		condition(`{"StringEquals": {"dynamodb:Select": []}}`):                               "dynamodb:Select is empty",
		condition(`{"StringEquals": {"dynamodb:Select": [null]}}`):                           "not a string",
		condition(`{"StringEquals": {"dynamodb:Select": "a"}, "StringEquals": {}}`):          "duplicate",
		condition(`{"StringEquals": {"dynamodb:Colour": "a"}}`):                              `unknown condition key "dynamodb:Colour"`,
		condition(`{"StringMatches": {"dynamodb:Select": "a"}}`):                             `unknown operator "StringMatches"`,
		condition(`{"stringequals": {"dynamodb:Select": "a"}}`):                              `unknown operator "stringequals"`,
		condition(`{"IfExists": {"dynamodb:Select": "a"}}`):                                  `unknown operator "IfExists"`,
		condition(`{"ForAllValues:ForAnyValue:StringEquals": {"dynamodb:Select": "a"}}`):     "unknown operator",
		condition(`{"NumericEquals": {"dynamodb:Select": 1}}`):                               `unknown operator "NumericEquals"`,
		condition(`{"ForAllValues:Null": {"dynamodb:LeadingKeys": "true"}}`):                 `unknown operator "ForAllValues:Null"`,
		condition(`{"NullIfExists": {"dynamodb:LeadingKeys": "true"}}`):                      `unknown operator "NullIfExists"`,
		condition(`{"Null": {"dynamodb:LeadingKeys": ["true", "false"]}}`):                   "takes one value",
		condition(`{"Null": {"dynamodb:LeadingKeys": "maybe"}}`):                             "neither true nor false",
		condition(`{"StringEquals": {"dynamodb:LeadingKeys": "a"}}`):                         "use ForAllValues or ForAnyValue",
		condition(`{"Bool": {"dynamodb:Select": "true"}}`):                                   "dynamodb:Select is text, not true or false",
		condition(`{"IpAddress": {"aws:UserAgent": "10.0.0.1"}}`):                            "aws:UserAgent is text, not an address",
		condition(`{"IpAddress": {"aws:SourceIp": "10.0.0.300"}}`):                           "neither an address nor a network",
		condition(`{"IpAddress": {"aws:SourceIp": "10.0.0.0/33"}}`):                          "neither an address nor a network",
		condition(`{"IpAddress": {"aws:SourceIp": "::ffff:10.0.0.0/100"}}`):                  "neither an address nor a network",
		condition(`{"Bool": {"aws:SecureTransport": "yes"}}`):                                "neither true nor false",
		condition(`{"DateLessThan": {"aws:CurrentTime": "tomorrow"}}`):                       "is no time",
		condition(`{"StringEquals": {"aws:userid": "${dynamodb:LeadingKeys}"}}`):             "is no variable",
		condition(`{"StringEquals": {"aws:userid": "${aws:username, nobody}"}}`):             "not in single quotes",
		condition(`{"StringEquals": {"aws:userid": "` + strings.Repeat("x", 20<<10) + `"}}`): "longer than 20480 bytes",
	} {
		_, err := Parse([]byte(document))
		if err == nil || !strings.HasPrefix(err.Error(), "policy: ") || !strings.Contains(err.Error(), want) {
			if len(document) > 200 {
				document = document[:200]
			}
			t.Errorf("%s\ngot %v, want %s", document, err, want)
		}
	}
}

func TestGlobEqualsRegularExpression(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[abé*?]{0,12}`).Draw(t, "pattern")
		s := rapid.StringMatching(`[abé*]{0,12}`).Draw(t, "text")
		p, err := parsePattern(text, true, false)
		if err != nil {
			t.Fatal(err)
		}
		expression := regexp.QuoteMeta(text)
		expression = strings.NewReplacer(`\*`, `.*`, `\?`, `.`).Replace(expression)
		want := regexp.MustCompile(`^(?s:` + expression + `)$`).MatchString(s)
		if got := p.match(s, nil) == yes; got != want {
			t.Errorf("%q matches %q: %v", text, s, got)
		}
	})
}

// rule is a statement of the model.
type rule struct {
	effect, action, resource, condition string
	notAction, notResource              bool
}

func (r rule) document() string {
	action, resource := "Action", "Resource"
	if r.notAction {
		action = "NotAction"
	}
	if r.notResource {
		resource = "NotResource"
	}
	return fmt.Sprintf(`{"Effect": %q, %q: %q, %q: %q, "Condition": {%s}}`, r.effect, action, r.action, resource, r.resource, r.condition)
}

// applies is what the documentation says, in the form of a table.
func (r rule) applies(action, resource string, keys []string) bool {
	actions := map[string]string{"dynamodb:Get*": "dynamodb:GetItem", "dynamodb:Put*": "dynamodb:PutItem"}
	resources := map[string]string{"arn:a:b:c:d:t?": "arn:a:b:c:d:t1", "arn:a:b:c:d:u": "arn:a:b:c:d:u"}
	all, some := true, false
	for _, k := range keys {
		all = all && k == "k"
		some = some || k == "k"
	}
	conditions := map[string]bool{
		"": true,
		`"ForAllValues:StringEquals": {"dynamodb:LeadingKeys": "k"}`: all,
		`"ForAnyValue:StringEquals": {"dynamodb:LeadingKeys": "k"}`:  some,
		`"Null": {"dynamodb:LeadingKeys": "true"}`:                   len(keys) == 0,
	}
	return (actions[r.action] == action) != r.notAction && (resources[r.resource] == resource) != r.notResource && conditions[r.condition]
}

func TestDecisionEqualsTheDocumentedLogic(t *testing.T) {
	rules := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) rule {
		return rule{
			effect:   rapid.SampledFrom([]string{"Allow", "Deny"}).Draw(t, "effect"),
			action:   rapid.SampledFrom([]string{"dynamodb:Get*", "dynamodb:Put*"}).Draw(t, "action"),
			resource: rapid.SampledFrom([]string{"arn:a:b:c:d:t?", "arn:a:b:c:d:u"}).Draw(t, "resource"),
			condition: rapid.SampledFrom([]string{"", `"ForAllValues:StringEquals": {"dynamodb:LeadingKeys": "k"}`,
				`"ForAnyValue:StringEquals": {"dynamodb:LeadingKeys": "k"}`, `"Null": {"dynamodb:LeadingKeys": "true"}`}).Draw(t, "condition"),
			notAction:   rapid.Bool().Draw(t, "not action"),
			notResource: rapid.Bool().Draw(t, "not resource"),
		}
	}), 1, 5)
	rapid.Check(t, func(t *rapid.T) {
		action := rapid.SampledFrom([]string{"dynamodb:GetItem", "dynamodb:PutItem"}).Draw(t, "action")
		resource := rapid.SampledFrom([]string{"arn:a:b:c:d:t1", "arn:a:b:c:d:u", "*"}).Draw(t, "resource")
		keys := rapid.SliceOfN(rapid.SampledFrom([]string{"k", "l"}), 0, 3).Draw(t, "keys")
		var policies []*Policy
		allowed, denied := false, false
		for range rapid.IntRange(0, 3).Draw(t, "policies") {
			var documents []string
			for _, r := range rules.Draw(t, "statements") {
				documents = append(documents, r.document())
				if r.applies(action, resource, keys) {
					allowed = allowed || r.effect == "Allow"
					denied = denied || r.effect == "Deny"
				}
			}
			p, err := Parse([]byte(`{"Statement": [` + strings.Join(documents, ",") + `]}`))
			if err != nil {
				t.Fatal(err)
			}
			policies = append(policies, p)
		}
		want := ImplicitDeny
		if denied {
			want = ExplicitDeny
		} else if allowed {
			want = Allowed
		}
		if got := Decide(Request{Action: action, Resource: resource, Context: map[Key][]string{LeadingKeys: keys}}, policies...); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add(`{"Version": "2012-10-17", "Id": "x", "Statement": [{"Sid": "a", "Effect": "Allow", "NotAction": ["dynamodb:*", "s3:?"], "Resource": ["arn:aws:*:${aws:username,'x'}", "*"], "Condition": {"ForAllValues:StringLikeIfExists": {"dynamodb:LeadingKeys": ["a*", true, 1]}}}]}`)
	f.Add(`{"Statement": {"Effect": "Deny", "Action": "*", "NotResource": "arn:a", "Condition": {"IpAddress": {"aws:SourceIp": "::1/3"}, "DateLessThan": {"aws:CurrentTime": "2026-03-01"}, "Null": {"aws:userid": "true"}, "Bool": {"aws:SecureTransport": "false"}}}}`)
	f.Fuzz(func(t *testing.T, document string) {
		p, err := Parse([]byte(document))
		if err != nil {
			if p != nil || !strings.HasPrefix(err.Error(), "policy: ") {
				t.Error(p, err)
			}
			return
		}
		r := Request{Action: "dynamodb:GetItem", Resource: table, Context: map[Key][]string{
			LeadingKeys: {"a", "b"}, SourceIP: {"10.0.0.1"}, UserName: {"ann"}, CurrentTime: {"2026-03-01T00:00:00Z"},
		}}
		denies := !slices.ContainsFunc(p.statements, func(s statement) bool { return !s.deny })
		if got := Decide(r, p); got == Allowed && denies {
			t.Errorf("allowed by %s", document)
		}
	})
}
