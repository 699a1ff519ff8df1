package sync15

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-dev/holdfast/api/sync15/bso"
	"github.com/holdfast-dev/holdfast/api/sync15/storage"
	"github.com/holdfast-dev/holdfast/offload"
)

// How long a write is tried again when others are in its way. The commit of a batch
// may hold so much that a slow machine needs longer for a single try.
const (
	commitTimeout = 5 * time.Second
	batchTimeout  = time.Minute
)

// committing returns the context of a commit. A client that goes away must not
// leave a commit half known, so its context does not count.
func committing(ctx context.Context, batch bso.Batch) (context.Context, context.CancelFunc) {
	timeout := commitTimeout
	if batch.Commit && !batch.Plain() {
		timeout = batchTimeout
	}
	return context.WithTimeout(context.WithoutCancel(ctx), timeout)
}

// body is a request body in memory, within the server's budget.
type body struct {
	bytes   []byte
	release func()
}

// smallBody is up to what size a body is read without waiting for memory: it costs
// little more than its connection does. So many slow uploads do not keep others
// from changing their small records.
const smallBody = 16 << 10

// readBody reads a whole body of at most the collection's size, once there is
// memory for it. How long the client may take is up to the http.Server.
func (s *Server) readBody(ctx context.Context, rq *request, limits bso.CollectionLimits) (body, error) {
	if err := limits.CheckLength(rq.ContentLength); err != nil {
		return body{}, err
	}
	reserve := rq.ContentLength
	if reserve < 0 {
		reserve = limits.MaxRequestBytes
	}
	b := body{release: func() {}}
	if reserve > smallBody {
		waiting, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		if err := s.bodies.Acquire(waiting, reserve); err != nil {
			return body{}, fmt.Errorf("%w: no memory for the body: %w", errRetry, err)
		}
		b.release = func() { s.bodies.Release(reserve) }
	}
	var err error
	if rq.ContentLength >= 0 {
		b.bytes = make([]byte, rq.ContentLength)
		_, err = io.ReadFull(rq.Body, b.bytes)
	} else {
		b.bytes, err = io.ReadAll(io.LimitReader(rq.Body, limits.MaxRequestBytes+1))
	}
	if err != nil {
		err = &bso.Error{Status: http.StatusBadRequest, Code: bso.CodeInvalid,
			Metric: "request.validate.invalid_body_json", Detail: "the body ended early"}
	} else {
		err = limits.CheckLength(int64(len(b.bytes)))
	}
	if err != nil {
		b.release()
		return body{}, err
	}
	return b, nil
}

func (s *Server) putRecord(ctx context.Context, rq *request) (*answer, error) {
	format, err := bso.BodyFormat(rq.Header)
	if err != nil {
		return nil, err
	}
	collection := rq.route.Collection
	limits := s.opts.Limits.For(collection)
	b, err := s.readBody(ctx, rq, limits)
	if err != nil {
		return nil, err
	}
	defer b.release()
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := rq.turn.begin(ctx, &s.turns, s.commitSize(collection, b)); err != nil {
		return nil, err
	}
	update, err := bso.ParsePut(b.bytes, format, collection, rq.route.ID, limits)
	if err != nil {
		return nil, err
	}
	patches := []storage.Patch{{Update: update}}
	var t bso.Timestamp
	err = s.offloaded(ctx, rq, patches, "put_bso", bso.Batch{}, func(ctx context.Context) ([]string, error) {
		var err error
		t, err = s.opts.Store.Put(ctx, rq.user, collection, patches[0], rq.pre)
		return nil, err
	})
	if err != nil {
		return nil, err
	}
	a := writtenAnswer(t, t.Append(nil))
	s.tellQuota(ctx, rq, a)
	return a, nil
}

func (s *Server) postCollection(ctx context.Context, rq *request) (*answer, error) {
	collection := rq.route.Collection
	format, err := bso.BodyFormat(rq.Header)
	if err != nil {
		return nil, err
	}
	if err := s.opts.Limits.CheckAnnounced(collection, rq.Header); err != nil {
		return nil, err
	}
	batch, err := bso.ParseBatch(rq.query)
	if err != nil {
		return nil, err
	}
	limits := s.opts.Limits.For(collection)
	b, err := s.readBody(ctx, rq, limits)
	if err != nil {
		return nil, err
	}
	defer b.release()
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := rq.turn.begin(ctx, &s.turns, s.commitSize(collection, b)); err != nil {
		return nil, err
	}
	post, err := bso.ParsePost(b.bytes, format, collection, limits)
	if err != nil {
		return nil, err
	}
	if !batch.Plain() {
		s.metrics.request("post_collection_batch", rq.claims.TokenserverOrigin)
	}
	return s.write(ctx, rq, batch, &post)
}

// write stores what a POST brought, at once or in a batch.
func (s *Server) write(ctx context.Context, rq *request, batch bso.Batch, post *bso.Post) (*answer, error) {
	patches := make([]storage.Patch, len(post.Updates))
	for i := range post.Updates {
		patches[i].Update = post.Updates[i]
	}
	var staged storage.Staged
	err := s.offloaded(ctx, rq, patches, "post_collection", batch, func(ctx context.Context) ([]string, error) {
		var err error
		store, collection := s.opts.Store, rq.route.Collection
		switch {
		case batch.Plain():
			staged.Modified, err = store.Post(ctx, rq.user, collection, patches, rq.pre)
		case batch.Start:
			staged, err = store.StartBatch(ctx, rq.user, collection, patches, rq.pre)
		case batch.Commit:
			staged, err = store.CommitBatch(ctx, rq.user, collection, batch.ID, patches, rq.pre)
		default:
			staged, err = store.Append(ctx, rq.user, collection, batch.ID, patches, rq.pre)
		}
		return slices.Concat(staged.TooManyBytes, staged.TooManyRecords), err
	})
	if err != nil {
		return nil, err
	}
	noRoom(post, staged)
	if staged.Batch != "" {
		return modifiedAnswer(http.StatusAccepted, staged.Modified, bso.AppendStaged(nil, staged.Batch, *post)), nil
	}
	a := writtenAnswer(staged.Modified, bso.AppendPosted(nil, staged.Modified, *post))
	s.tellQuota(ctx, rq, a)
	return a, nil
}

// noRoom moves the records that a batch had no room for to those that failed.
func noRoom(post *bso.Post, staged storage.Staged) {
	fail := func(ids []string, reason string) {
		for _, id := range ids {
			post.Updates = slices.DeleteFunc(post.Updates, func(u bso.Update) bool { return u.ID == id })
			post.Failed = append(post.Failed, bso.Failure{ID: id, Reason: reason})
		}
	}
	fail(staged.TooManyBytes, bso.RetryBytes)
	fail(staged.TooManyRecords, bso.RetryCount)
}

// offloaded runs commit, a transaction that writes the patches, and before it
// uploads the payloads that belong into the object store and puts their links
// into the patches. Whatever becomes of the commit, no object is left behind that
// the change records or the store's lifecycle do not see to. commit returns the
// ids of records that it did not write although it succeeded.
func (s *Server) offloaded(ctx context.Context, rq *request, patches []storage.Patch, handler string, batch bso.Batch,
	commit func(context.Context) (unwritten []string, err error)) error {
	at := s.toUpload(rq, patches)
	if len(at) == 0 {
		ctx, cancel := committing(ctx, batch)
		defer cancel()
		_, err := commit(ctx)
		return err
	}
	if err := s.checkWrite(ctx, rq, patches, batch); err != nil {
		return err
	}
	payloads := make([]offload.Payload, len(at))
	for n, i := range at {
		payloads[n] = offload.Payload{
			Prefix: rq.user.ObjectPrefix() + "/" + rq.route.Collection + "/" + patches[i].ID,
			Data:   patches[i].Payload,
		}
	}
	var uploads *offload.Uploads
	err := rq.turn.waiting(ctx, func() (err error) {
		uploads, err = s.opts.Offload.Upload(ctx, handler, payloads)
		return err
	})
	if err != nil {
		if uploads != nil { // but there was no turn after it
			uploads.Settle(ctx, err)
		}
		return err
	}
	for n, link := range uploads.Links() {
		p := &patches[at[n]]
		p.Link, p.Size = link, len(p.Payload)
	}
	commitCtx, cancel := committing(ctx, batch) // its time begins after the uploads
	defer cancel()
	unwritten, err := commit(commitCtx)
	rq.turn.end()
	uploads.Settle(ctx, err)
	if err != nil {
		return err
	}
	for n, i := range at {
		if slices.Contains(unwritten, patches[i].ID) {
			uploads.Discard(ctx, n)
		}
	}
	return nil
}

// commitSize is about how many bytes of payloads a body adds to a commit.
func (s *Server) commitSize(collection string, b body) int64 {
	if slices.Contains(s.opts.OffloadCollections, collection) {
		return 0
	}
	return int64(len(b.bytes))
}

// toUpload returns the indices of the patches whose payloads belong into the object
// store.
func (s *Server) toUpload(rq *request, patches []storage.Patch) (at []int) {
	if !slices.Contains(s.opts.OffloadCollections, rq.route.Collection) {
		return nil
	}
	for i := range patches {
		if patches[i].HasPayload && len(patches[i].Payload) >= s.opts.OffloadMinBytes {
			at = append(at, i)
		}
	}
	return at
}

// checkWrite lets what is bound to fail do so before anything is uploaded.
func (s *Server) checkWrite(ctx context.Context, rq *request, patches []storage.Patch, batch bso.Batch) error {
	var staged int64
	if batch.Start && !batch.Commit {
		for i := range patches {
			staged += int64(len(patches[i].Payload))
		}
	}
	return s.opts.Store.CheckWrite(ctx, rq.user, rq.route.Collection, rq.route.ID, batch.ID, staged, rq.pre)
}

// quotaHint is below how many bytes left a client is told so.
const quotaHint = 1 << 20

// tellQuota adds how much room is left, when the quota is enforced and it is
// little.
func (s *Server) tellQuota(ctx context.Context, rq *request, a *answer) {
	if !s.opts.EnforceQuota {
		return
	}
	info, err := s.opts.Store.Usage(ctx, rq.user)
	if err != nil {
		s.logFailure(rq, err) // the write is done: a missing hint is no failure
		return
	}
	left := s.opts.Limits.MaxQuota
	for _, c := range info.Collections {
		left -= c.Bytes
	}
	if left < quotaHint {
		a.set("X-Weave-Quota-Remaining", strconv.FormatInt(max(left, 0)/1024, 10))
	}
}

func (s *Server) delete(ctx context.Context, rq *request) (*answer, error) {
	ctx, cancel := committing(ctx, bso.Batch{})
	defer cancel()
	store, collection := s.opts.Store, rq.route.Collection
	var t bso.Timestamp
	var err error
	switch rq.route.Resource {
	case bso.Storage:
		if t, err = store.DeleteAll(ctx, rq.user, rq.pre); err != nil {
			return nil, err
		}
		return writtenAnswer(t, []byte("{}")), nil
	case bso.Item:
		t, err = store.Delete(ctx, rq.user, collection, rq.route.ID, rq.pre)
	default:
		var ids []string
		if ids, err = bso.ParseDeletion(rq.query); err != nil {
			return nil, err
		}
		if ids == nil {
			t, err = store.DeleteCollection(ctx, rq.user, collection, rq.pre)
		} else {
			s.metrics.request("delete_bsos", rq.claims.TokenserverOrigin)
			t, err = store.DeleteSome(ctx, rq.user, collection, ids, rq.pre)
		}
	}
	if err != nil {
		return nil, err
	}
	return writtenAnswer(t, append(t.Append([]byte(`{"modified":`)), '}')), nil
}
