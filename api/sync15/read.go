package sync15

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/api/sync15/bso"
	"github.com/holdfast-dev/holdfast/api/sync15/storage"
	"github.com/holdfast-dev/holdfast/offload"
)

// Bounds of what a request does with the engine and the object store.
const (
	// requestTimeout counts from when the body is there. It is far below the 30
	// days for which an object waits to be finalized.
	requestTimeout = 2 * time.Minute
	// listTimeout is for the listing of a collection, which includes the sending of
	// it: as long as the program gives to a request as a whole.
	listTimeout = 5 * time.Minute
)

func (s *Server) getConfiguration() (*answer, error) {
	body, err := s.opts.Limits.AppendConfiguration(nil)
	return modifiedAnswer(http.StatusOK, 0, body), err
}

func (s *Server) getInfo(ctx context.Context, rq *request) (*answer, error) {
	read := s.opts.Store.Usage
	if rq.route.Resource == bso.InfoCollections {
		read = s.opts.Store.Info
	}
	info, err := read(ctx, rq.user)
	if err != nil {
		return nil, err
	}
	if a := unmet(rq.pre, info.Modified); a != nil {
		return a, nil
	}
	if rq.route.Resource != bso.InfoCollections {
		// The views that count list what there is to count, as the public server does.
		info.Collections = slices.DeleteFunc(info.Collections, func(c storage.CollectionInfo) bool { return c.Count == 0 })
	}
	a := modifiedAnswer(http.StatusOK, info.Modified, s.renderInfo(rq.route.Resource, info))
	if rq.route.Resource != bso.InfoQuota {
		a.set("X-Weave-Records", strconv.Itoa(len(info.Collections)))
	}
	return a, nil
}

// unmet returns the answer to a request whose precondition does not hold for a
// resource of that age, else nil.
func unmet(pre bso.Precondition, modified bso.Timestamp) *answer {
	switch {
	case pre.NotModified(modified):
		return modifiedAnswer(http.StatusNotModified, modified, nil)
	case pre.Failed(modified):
		return modifiedAnswer(http.StatusPreconditionFailed, modified, nil)
	}
	return nil
}

func (s *Server) renderInfo(view bso.Resource, info storage.Info) []byte {
	if view == bso.InfoQuota {
		var used int64
		for _, c := range info.Collections {
			used += c.Bytes
		}
		body := append(appendKiB([]byte{'['}, used), ',')
		if s.opts.EnforceQuota {
			body = appendKiB(body, s.opts.Limits.MaxQuota)
		} else {
			body = append(body, "null"...)
		}
		return append(body, ']')
	}
	body := []byte{'{'}
	for i, c := range info.Collections {
		if i > 0 {
			body = append(body, ',')
		}
		body = append(append(append(body, '"'), c.Name...), `":`...) // a name needs no escape
		switch view {
		case bso.InfoCollections:
			body = c.Modified.Append(body)
		case bso.InfoCollectionCounts:
			body = strconv.AppendInt(body, c.Count, 10)
		default:
			body = appendKiB(body, c.Bytes)
		}
	}
	return append(body, '}')
}

// appendKiB appends bytes as KiB, always with a point, so that readers with types
// take it for the float that it is.
func appendKiB(dst []byte, bytes int64) []byte {
	n := len(dst)
	dst = strconv.AppendFloat(dst, float64(bytes)/1024, 'f', -1, 64)
	for _, c := range dst[n:] {
		if c == '.' {
			return dst
		}
	}
	return append(dst, ".0"...)
}

// readAttempts is how often a read begins anew because records changed while their
// payloads were fetched.
const readAttempts = 3

func (s *Server) getRecord(ctx context.Context, rq *request) (*answer, error) {
	var gone string // the link whose object was missing at the attempt before
	for {
		rec, err := s.opts.Store.Get(ctx, rq.user, rq.route.Collection, rq.route.ID)
		if err != nil {
			return nil, err
		}
		if a := unmet(rq.pre, rec.Modified); a != nil {
			return a, nil
		}
		if rec.Link != "" {
			missing, err := s.resolve(ctx, rq, gone, []storage.Record{rec}, func(r []storage.Record) { rec = r[0] })
			if missing != "" && missing != gone {
				gone = missing // replaced meanwhile, unless the next read finds it again
				continue
			}
			if err != nil {
				return nil, err
			}
		}
		return modifiedAnswer(http.StatusOK, rec.Modified, bso.AppendRecord(nil, rec.Record)), nil
	}
}

// resolve fetches the payloads of linked records. If an object is missing it
// returns its link besides the error. gone, if not empty, is a link whose object was
// missing before: a record that still has it is beyond help.
func (s *Server) resolve(ctx context.Context, rq *request, gone string, records []storage.Record, done func([]storage.Record)) (missing string, err error) {
	var links []string
	for i := range records {
		switch link := records[i].Link; {
		case link == "":
		case link == gone:
			return gone, &offload.MissingError{Link: gone}
		default:
			links = append(links, link)
		}
	}
	if len(links) == 0 {
		done(records)
		return "", nil
	}
	if s.opts.Offload == nil {
		return "", errNoObjectStore
	}
	var payloads [][]byte
	err = rq.turn.waiting(ctx, func() (err error) {
		payloads, err = s.opts.Offload.Resolve(ctx, links)
		return err
	})
	if err != nil {
		var m *offload.MissingError
		if errors.As(err, &m) {
			return m.Link, err
		}
		return "", err
	}
	resolved := make([]storage.Record, len(records))
	copy(resolved, records)
	n := 0
	for i := range resolved {
		if resolved[i].Link != "" {
			resolved[i].Payload = payloads[n]
			n++
		}
	}
	done(resolved)
	return "", nil
}

var errNoObjectStore = errors.New("sync: a record's payload is in an object store, and none is configured")

// buffers holds what answers are rendered into.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// streamBytes is up to what size the answer to a collection's GET is rendered
// before any of it is sent. Up to there a change of the collection goes unnoticed
// by the client, because the read begins anew.
const streamBytes = 4 << 20

func (s *Server) getCollection(ctx context.Context, w http.ResponseWriter, rq *request) (*answer, error) {
	format, err := bso.Accept(rq.Header)
	if err != nil {
		return nil, err
	}
	q, err := bso.ParseQuery(rq.query)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	var gone string
	for range readAttempts {
		l, err := s.opts.Store.List(ctx, rq.user, rq.route.Collection, q)
		if err != nil {
			return nil, err
		}
		if l.Modified == 0 && rq.pre.NotModified(0) {
			rq.pre = bso.Precondition{} // a collection that does not exist is never unmodified
		}
		if a := unmet(rq.pre, l.Modified); a != nil {
			return a, nil
		}
		a := modifiedAnswer(http.StatusOK, l.Modified, nil)
		a.contentType = format.ContentType()
		if l.More {
			a.set("X-Weave-Next-Offset", l.Items[len(l.Items)-1].Cursor(q.Sort).String())
		}
		out := &listWriter{server: s, w: w, rq: rq, answer: a, list: bso.List{Format: format}, listing: l, gone: gone}
		missing, err := out.run(ctx, q.Full)
		switch {
		case out.streaming && err != nil:
			if missing != "" && l.Check(ctx) == nil { // the record still has the link
				s.metrics.missing.Add(1)
			}
			s.logFailure(rq, err)
			panic(http.ErrAbortHandler) // the client sees that the answer is cut off
		case err == nil:
			return nil, nil // sent
		case missing != "" && missing != gone:
			gone = missing
		case !errors.Is(err, storage.ErrChanged):
			return nil, err
		}
	}
	return nil, errRetry
}

// listWriter renders a listing, and begins to send it when it gets large.
type listWriter struct {
	server    *Server
	w         http.ResponseWriter
	rq        *request
	answer    *answer
	list      bso.List
	listing   *storage.Listing
	gone      string // a link whose object was missing at the attempt before
	buf       []byte
	streaming bool
}

func (lw *listWriter) run(ctx context.Context, full bool) (missing string, err error) {
	pooled := buffers.Get().(*[]byte)
	lw.buf = (*pooled)[:0]
	defer func() {
		if cap(lw.buf) <= 2*streamBytes {
			*pooled = lw.buf
			buffers.Put(pooled)
		}
	}()
	if full {
		missing, err = lw.records(ctx)
	} else {
		err = lw.ids(ctx)
	}
	if err != nil {
		return missing, err
	}
	lw.buf = lw.list.AppendEnd(lw.buf)
	if full && !lw.listing.Whole() {
		if err := lw.listing.Check(ctx); err != nil {
			return "", err
		}
	}
	if lw.streaming {
		return "", lw.flush(ctx)
	}
	lw.answer.body = lw.buf
	lw.answer.set("X-Weave-Records", strconv.Itoa(lw.list.Len()))
	lw.rq.turn.end()
	lw.answer.write(lw.w, lw.rq.began, lw.server.opts.Backoff)
	return "", nil
}

func (lw *listWriter) ids(ctx context.Context) error {
	for i := range lw.listing.Items {
		lw.buf = lw.list.AppendID(lw.buf, lw.listing.Items[i].ID)
		if err := lw.flushLarge(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (lw *listWriter) records(ctx context.Context) (missing string, err error) {
	err = lw.listing.Records(ctx, func(chunk []storage.Record) error {
		var failed error
		m, err := lw.server.resolve(ctx, lw.rq, lw.gone, chunk, func(records []storage.Record) {
			for i := range records {
				lw.buf = lw.list.AppendRecord(lw.buf, records[i].Record)
				if failed = lw.flushLarge(ctx); failed != nil {
					return
				}
			}
		})
		missing = m
		return errors.Join(err, failed)
	})
	return missing, err
}

// flushLarge sends what has been rendered once that is too much to hold.
func (lw *listWriter) flushLarge(ctx context.Context) error {
	if len(lw.buf) < lw.server.stream {
		return nil
	}
	return lw.flush(ctx)
}

func (lw *listWriter) flush(ctx context.Context) error {
	if !lw.streaming {
		lw.streaming = true
		lw.answer.set("X-Weave-Records", strconv.Itoa(len(lw.listing.Items)))
		lw.answer.head(lw.w, lw.rq.began, lw.server.opts.Backoff)
	}
	err := lw.rq.turn.waiting(ctx, func() error {
		_, err := lw.w.Write(lw.buf)
		return err
	})
	lw.buf = lw.buf[:0]
	return err
}
