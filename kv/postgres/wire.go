package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// args are the parameters of a statement in binary form. With their types known
// no statement needs to be prepared first, so each is one round trip and leaves
// nothing behind in the session.
type args struct {
	values [][]byte
	oids   []uint32
}

var binaryFormat = []int16{pgtype.BinaryFormatCode}

func (a *args) add(oid uint32, v []byte) *args {
	a.values, a.oids = append(a.values, v), append(a.oids, oid)
	return a
}

func (a *args) int8(n int64) *args {
	return a.add(pgtype.Int8OID, binary.BigEndian.AppendUint64(nil, uint64(n)))
}

func (a *args) int4(n int) *args {
	return a.add(pgtype.Int4OID, binary.BigEndian.AppendUint32(nil, uint32(int32(n))))
}

func (a *args) bool(b bool) *args { return a.add(pgtype.BoolOID, boolBytes(b)) }

func (a *args) text(s string) *args { return a.add(pgtype.TextOID, append([]byte{}, s...)) }

// bytes takes nil for empty, and the statement may not outlive b.
func (a *args) bytes(b []byte) *args { return a.add(pgtype.ByteaOID, nonNil(b)) }

// nullableBytes takes nil for NULL.
func (a *args) nullableBytes(b []byte) *args { return a.add(pgtype.ByteaOID, b) }

func (a *args) xid8(n uint64) *args {
	return a.add(pgtype.XID8OID, binary.BigEndian.AppendUint64(nil, n))
}

func nonNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

func boolBytes(b bool) []byte {
	if b {
		return []byte{1}
	}
	return []byte{0}
}

// array is the binary form of a one-dimensional array that is being made.
type array struct {
	oid, elem uint32
	n         int
	body      []byte
}

func (a *array) append(b []byte) {
	a.n++
	a.body = append(binary.BigEndian.AppendUint32(a.body, uint32(len(b))), b...)
}

func (a *array) appendNull() {
	a.n++
	a.body = binary.BigEndian.AppendUint32(a.body, 1<<32-1)
}

func (a *array) appendInt8(v int64) {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(v))
	a.append(b[:])
}

func (a *array) appendInt4(v int) {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], uint32(int32(v)))
	a.append(b[:])
}

func (a *array) appendBool(v bool) { a.append(boolBytes(v)) }

func int8Array() array  { return array{oid: pgtype.Int8ArrayOID, elem: pgtype.Int8OID} }
func int4Array() array  { return array{oid: pgtype.Int4ArrayOID, elem: pgtype.Int4OID} }
func boolArray() array  { return array{oid: pgtype.BoolArrayOID, elem: pgtype.BoolOID} }
func textArray() array  { return array{oid: pgtype.TextArrayOID, elem: pgtype.TextOID} }
func byteaArray() array { return array{oid: pgtype.ByteaArrayOID, elem: pgtype.ByteaOID} }

// array ends the making of v.
func (a *args) array(v *array) *args {
	// Dimensions, whether there are nulls (the server looks for itself), type.
	head := binary.BigEndian.AppendUint32(make([]byte, 0, 20+len(v.body)), min(uint32(v.n), 1))
	head = binary.BigEndian.AppendUint32(head, 0)
	head = binary.BigEndian.AppendUint32(head, v.elem)
	if v.n > 0 {
		head = binary.BigEndian.AppendUint32(head, uint32(v.n))
		head = binary.BigEndian.AppendUint32(head, 1) // the lowest index
	}
	return a.add(v.oid, append(head, v.body...))
}

var errWire = errors.New("answer of the server does not make sense")

func decodeInt(b []byte) (int64, error) {
	switch len(b) {
	case 4:
		return int64(int32(binary.BigEndian.Uint32(b))), nil
	case 8:
		return int64(binary.BigEndian.Uint64(b)), nil
	}
	return 0, fmt.Errorf("%w: number of %d bytes", errWire, len(b))
}

// decodeInts decodes an array of int4 without nulls.
func decodeInts(b []byte) ([]int, error) {
	if len(b) < 20 {
		return nil, fmt.Errorf("%w: array of %d bytes", errWire, len(b))
	}
	n := int(binary.BigEndian.Uint32(b[12:]))
	if b = b[20:]; len(b) != 8*n {
		return nil, fmt.Errorf("%w: array of %d numbers in %d bytes", errWire, n, len(b))
	}
	all := make([]int, n)
	for i := range all {
		all[i] = int(binary.BigEndian.Uint32(b[8*i+4:]))
	}
	return all, nil
}

// roundTrip runs one statement, in a transaction of its own, and calls row for
// each row of the answer. The values are valid only until row returns; nil is
// NULL.
func roundTrip(ctx context.Context, pool *pgxpool.Pool, sql string, a *args, row func(values [][]byte) error) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return &unsentError{err}
	}
	defer conn.Release()
	answer := conn.Conn().PgConn().ExecParams(ctx, sql, a.values, a.oids, binaryFormat, binaryFormat)
	var failed error
	for answer.NextRow() {
		if failed == nil {
			failed = row(answer.Values())
		}
	}
	// Only the end of the answer tells that the transaction was committed.
	if _, err := answer.Close(); err != nil {
		return err
	}
	return failed
}

// roundTrip runs a statement on the primary.
func (e *Engine) roundTrip(ctx context.Context, sql string, a *args, row func(values [][]byte) error) error {
	return roundTrip(ctx, e.pool, sql, a, row)
}

// unsentError is the failure to get a connection.
type unsentError struct{ error }

func (e *unsentError) Unwrap() error { return e.error }

// SafeToRetry is what pgconn.SafeToRetry asks for.
func (e *unsentError) SafeToRetry() bool { return true }
