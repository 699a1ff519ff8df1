package wire

import (
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/holdfast-dev/holdfast/api/dynamo/fault"
)

// Check collects the faults of a request in the order in which its methods are called,
// to report them together. Its zero value is empty.
//
// A path names a member as the service does, in lowerCamelCase: see [Element] and
// [Entry]. A value is a field of a request; one that is nil is not there, which only
// Required minds. Every method tells whether the value is good, so that one check can
// depend on another.
//
//	var c wire.Check
//	_ = c.Required("tableName", in.TableName) &&
//		c.Length("tableName", in.TableName, 1, 255) &&
//		c.Pattern("tableName", in.TableName, tableName)
//	c.Enum("select", in.Select, wire.Select)
//	c.Range("limit", in.Limit, 1, wire.NoLimit)
//	return c.Err()
type Check struct {
	faults []string
}

// maxFaults is how many faults are reported at most.
const maxFaults = 10

// NoLimit is an upper limit that nothing reaches.
const NoLimit = math.MaxInt64

// Err returns a ValidationException with all faults, or nil.
func (c *Check) Err() error {
	switch n := len(c.faults); n {
	case 0:
		return nil
	case 1:
		return fault.Validation("%s", "1 validation error detected: "+c.faults[0])
	default:
		return fault.Validation("%d validation errors detected: %s", n, strings.Join(c.faults, "; "))
	}
}

// Fault adds a fault with any constraint.
func (c *Check) Fault(path string, value any, constraint string) bool {
	shown, ok := show(value)
	if ok {
		shown = "'" + shown + "'"
	}
	return c.add("Value " + shown + " at '" + path + "' failed to satisfy constraint: " + constraint)
}

// Bare adds a fault that does not show the value: some operations leave it out.
func (c *Check) Bare(path, constraint string) bool {
	return c.add("Value at '" + path + "' failed to satisfy constraint: " + constraint)
}

func (c *Check) add(text string) bool {
	if len(c.faults) < maxFaults {
		c.faults = append(c.faults, text)
	}
	return false
}

// Required asks for a value.
func (c *Check) Required(path string, value any) bool {
	return !absent(value) || c.Fault(path, nil, "Member must not be null")
}

// Range asks for a whole number from least to most.
func (c *Check) Range(path string, value any, least, most int64) bool {
	if absent(value) {
		return true
	}
	switch n := reflect.Indirect(reflect.ValueOf(value)).Int(); {
	case n < least:
		return c.Fault(path, value, ValueAtLeast(least))
	case n > most:
		return c.Fault(path, value, ValueAtMost(most))
	}
	return true
}

// Length asks for a text, list or map of least to most characters or elements.
func (c *Check) Length(path string, value any, least, most int64) bool {
	if absent(value) {
		return true
	}
	switch n := length(value); {
	case n < least:
		return c.Fault(path, value, LengthAtLeast(least))
	case n > most:
		return c.Fault(path, value, LengthAtMost(most))
	}
	return true
}

// Pattern asks for a text that is wholly matched.
func (c *Check) Pattern(path string, value *string, p Pattern) bool {
	return value == nil || p.whole.MatchString(*value) ||
		c.Fault(path, value, "Member must satisfy regular expression pattern: "+p.text)
}

// Enum asks for one of a set.
func (c *Check) Enum(path string, value *string, set Enum) bool {
	return value == nil || slices.Contains(set, *value) ||
		c.Fault(path, value, "Member must satisfy enum value set: ["+strings.Join(set, ", ")+"]")
}

// ValueAtLeast and the others are constraints for [Check.Fault] and [Check.Bare].
func ValueAtLeast(n int64) string {
	return "Member must have value greater than or equal to " + strconv.FormatInt(n, 10)
}

// ValueAtMost is the constraint of the largest number.
func ValueAtMost(n int64) string {
	return "Member must have value less than or equal to " + strconv.FormatInt(n, 10)
}

// LengthAtLeast is the constraint of the shortest text, list or map.
func LengthAtLeast(n int64) string {
	return "Member must have length greater than or equal to " + strconv.FormatInt(n, 10)
}

// LengthAtMost is the constraint of the longest text, list or map.
func LengthAtMost(n int64) string {
	return "Member must have length less than or equal to " + strconv.FormatInt(n, 10)
}

// MapValue is the constraint that each value of a map satisfies all of these.
func MapValue(constraints ...string) string {
	return "Map value must satisfy constraint: [" + strings.Join(constraints, ", ") + "]"
}

// Element is the path of the i-th element of a list, counted from 0, or of members in
// it: Element("keySchema", 0, "keyType") is keySchema.1.member.keyType.
func Element(list string, i int, members ...string) string {
	return strings.Join(append([]string{list, strconv.Itoa(i + 1), "member"}, members...), ".")
}

// Entry is the path of a value in a map, or of members in it:
// Entry("requestItems", "t", "keys") is requestItems.t.member.keys.
func Entry(mapping, key string, members ...string) string {
	return strings.Join(append([]string{mapping, key, "member"}, members...), ".")
}

// Pattern is a regular expression for whole texts.
type Pattern struct {
	text  string
	whole *regexp.Regexp
}

// NewPattern compiles a pattern, which must be one.
func NewPattern(text string) Pattern {
	return Pattern{text, regexp.MustCompile(`\A(?:` + text + `)\z`)}
}

// Enum is a set of values, in the order in which the service prints it.
type Enum []string

// The sets of the service.
var (
	ReturnConsumedCapacity              = Enum{"INDEXES", "TOTAL", "NONE"}
	ReturnItemCollectionMetrics         = Enum{"SIZE", "NONE"}
	ReturnValues                        = Enum{"ALL_NEW", "UPDATED_OLD", "ALL_OLD", "NONE", "UPDATED_NEW"}
	ReturnValuesOnConditionCheckFailure = Enum{"ALL_OLD", "NONE"}
	Select                              = Enum{"SPECIFIC_ATTRIBUTES", "COUNT", "ALL_ATTRIBUTES", "ALL_PROJECTED_ATTRIBUTES"}
	ConditionalOperator                 = Enum{"OR", "AND"}
	ComparisonOperator                  = Enum{"IN", "NULL", "BETWEEN", "LT", "NOT_CONTAINS", "EQ", "GT", "NOT_NULL", "NE", "LE", "BEGINS_WITH", "GE", "CONTAINS"}
	AttributeAction                     = Enum{"ADD", "PUT", "DELETE"}
	KeyType                             = Enum{"HASH", "RANGE"}
	AttributeType                       = Enum{"B", "N", "S"}
	ProjectionType                      = Enum{"ALL", "INCLUDE", "KEYS_ONLY"}
	BillingMode                         = Enum{"PROVISIONED", "PAY_PER_REQUEST"}
	TableClass                          = Enum{"STANDARD", "STANDARD_INFREQUENT_ACCESS"}
	StreamViewType                      = Enum{"NEW_AND_OLD_IMAGES", "OLD_IMAGE", "NEW_IMAGE", "KEYS_ONLY"}
)

// absent tells whether a value is not there.
func absent(value any) bool {
	v := reflect.ValueOf(value)
	switch v.Kind() {
	case reflect.Invalid:
		return true
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return v.IsNil()
	}
	return false
}

// length counts a text in UTF-16 units, as Java does.
func length(value any) int64 {
	v := reflect.Indirect(reflect.ValueOf(value))
	switch {
	case v.Type() == attributeMapType:
		return membersOf(jsontext.Value(v.Bytes()))
	case v.Kind() == reflect.String:
		var n int64
		for _, c := range v.String() {
			if n++; c > 0xffff {
				n++
			}
		}
		return n
	}
	return int64(v.Len())
}
