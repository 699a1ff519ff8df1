package bso

import "strconv"

// Record is a stored record on its way to a client.
type Record struct {
	ID       string
	Modified Timestamp
	Payload  []byte // valid UTF-8

	SortIndex    int32
	HasSortIndex bool
}

// AppendRecord appends r as a JSON object. It holds no newline.
func AppendRecord(dst []byte, r Record) []byte {
	dst = appendString(append(dst, `{"id":`...), r.ID)
	dst = r.Modified.Append(append(dst, `,"modified":`...))
	if r.HasSortIndex {
		dst = strconv.AppendInt(append(dst, `,"sortindex":`...), int64(r.SortIndex), 10)
	}
	dst = appendPayload(append(dst, `,"payload":`...), r.Payload)
	return append(dst, '}')
}

// List writes records or ids in a [Format], appending to a buffer that the caller
// may send and empty at any moment between two calls.
type List struct {
	Format Format
	n      int
}

// Len returns the number of items written.
func (l *List) Len() int { return l.n }

// AppendRecord appends r as the next item.
func (l *List) AppendRecord(dst []byte, r Record) []byte {
	return l.after(AppendRecord(l.before(dst), r))
}

// AppendID appends an id as the next item.
func (l *List) AppendID(dst []byte, id string) []byte {
	return l.after(appendString(l.before(dst), id))
}

// AppendEnd appends what closes the list.
func (l *List) AppendEnd(dst []byte) []byte {
	switch {
	case l.Format == Newlines:
		return dst
	case l.n == 0:
		return append(dst, "[]"...)
	}
	return append(dst, ']')
}

func (l *List) before(dst []byte) []byte {
	l.n++
	switch {
	case l.Format == Newlines:
		return dst
	case l.n == 1:
		return append(dst, '[')
	}
	return append(dst, ',')
}

func (l *List) after(dst []byte) []byte {
	if l.Format == Newlines {
		return append(dst, '\n')
	}
	return dst
}

// AppendPosted appends the answer to a POST without a batch, or to the commit of
// one: what of the request's own body was written, and when.
func AppendPosted(dst []byte, modified Timestamp, p Post) []byte {
	dst = modified.Append(append(dst, `{"modified":`...))
	return appendOutcome(dst, p)
}

// AppendStaged appends the answer to a POST that went into a batch.
func AppendStaged(dst []byte, batchID string, p Post) []byte {
	dst = appendString(append(dst, `{"batch":`...), batchID)
	return appendOutcome(dst, p)
}

func appendOutcome(dst []byte, p Post) []byte {
	dst = append(dst, `,"success":[`...)
	for i := range p.Updates {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendString(dst, p.Updates[i].ID)
	}
	dst = append(dst, `],"failed":{`...)
	for i, f := range p.Failed {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendString(dst, f.ID)
		dst = appendString(append(dst, ':'), f.Reason)
	}
	return append(dst, "}}"...)
}

// appendPayload appends b as a JSON string, copying what needs no escape in runs.
func appendPayload(dst, b []byte) []byte {
	dst = append(dst, '"')
	for {
		n := plain(b)
		dst = append(dst, b[:n]...)
		if n == len(b) {
			return append(dst, '"')
		}
		dst = appendEscape(dst, b[n])
		b = b[n+1:]
	}
}

// appendString is appendPayload for short texts.
func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	done := 0
	for i := range len(s) {
		if isSpecial(s[i]) {
			dst = appendEscape(append(dst, s[done:i]...), s[i])
			done = i + 1
		}
	}
	return append(append(dst, s[done:]...), '"')
}

func appendEscape(dst []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\n':
		return append(dst, `\n`...)
	case '\r':
		return append(dst, `\r`...)
	case '\t':
		return append(dst, `\t`...)
	}
	const hex = "0123456789abcdef"
	return append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
}
