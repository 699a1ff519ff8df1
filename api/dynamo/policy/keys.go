package policy

import "strings"

// Key is a condition key: something of a request that conditions may ask for.
type Key string

// The keys that conditions and variables may name.
const (
	Attributes             Key = "dynamodb:Attributes"         // top-level attribute names that are read or written; several
	EnclosingOperation     Key = "dynamodb:EnclosingOperation" // TransactWriteItems and the like, for its parts
	FullTableScan          Key = "dynamodb:FullTableScan"      // of a PartiQL statement: true or false
	LeadingKeys            Key = "dynamodb:LeadingKeys"        // values of the partition key; several
	ReturnConsumedCapacity Key = "dynamodb:ReturnConsumedCapacity"
	ReturnValues           Key = "dynamodb:ReturnValues"
	Select                 Key = "dynamodb:Select"

	CurrentTime      Key = "aws:CurrentTime" // as RFC 3339 writes it
	PrincipalAccount Key = "aws:PrincipalAccount"
	PrincipalArn     Key = "aws:PrincipalArn"
	RequestedRegion  Key = "aws:RequestedRegion"
	ResourceAccount  Key = "aws:ResourceAccount"
	SecureTransport  Key = "aws:SecureTransport" // true or false
	SourceIP         Key = "aws:SourceIp"
	UserAgent        Key = "aws:UserAgent"
	UserID           Key = "aws:userid"
	UserName         Key = "aws:username"
)

// kind is what the values of a key are.
type kind int

const (
	text kind = iota
	boolean
	address
	date
)

func (k kind) String() string {
	return [...]string{"text", "true or false", "an address", "a time"}[k]
}

type keyInfo struct {
	name    Key
	kind    kind
	several bool // the key may have more than one value
}

// keys finds them by their names in lower case.
var keys = func() map[string]keyInfo {
	all := map[string]keyInfo{}
	for _, k := range []keyInfo{
		{Attributes, text, true},
		{EnclosingOperation, text, false},
		{FullTableScan, boolean, false},
		{LeadingKeys, text, true},
		{ReturnConsumedCapacity, text, false},
		{ReturnValues, text, false},
		{Select, text, false},
		{CurrentTime, date, false},
		{PrincipalAccount, text, false},
		{PrincipalArn, text, false},
		{RequestedRegion, text, false},
		{ResourceAccount, text, false},
		{SecureTransport, boolean, false},
		{SourceIP, address, false},
		{UserAgent, text, false},
		{UserID, text, false},
		{UserName, text, false},
	} {
		all[strings.ToLower(string(k.name))] = k
	}
	return all
}()
