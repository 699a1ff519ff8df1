// Package item is how attribute values and items are held, on their way and at rest.
//
// A [Value] is one attribute value in the stored encoding; an item is a Value of type
// M. JSON is read straight into it and written straight from it, and a part of a Value
// is a part of its bytes, so what is only passed on is not copied. Nothing changes a
// Value in place: [Apply] makes a new one.
//
// The encoding is a byte for the type, then:
//
//	S, B        the bytes
//	N           the number in the form that sorts (see Number)
//	BOOL        0 or 1
//	NULL        nothing
//	SS, NS, BS  the number of elements, each with its length and as a Value, in order
//	L           the number of elements, each with its length
//	M           the number of members in the order of their names, each as the name
//	            with its length and the value with its length
//
// Counts and lengths are varints of package encoding/binary. Equal values are equal
// bytes. What is no encoding is read as less than it claims to be, never with a panic.
package item
