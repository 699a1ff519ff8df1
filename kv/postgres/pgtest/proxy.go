package pgtest

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// Proxy passes connections on to a server, message by message. It can freeze them,
// cut them at a message, and count.
type Proxy struct {
	listener net.Listener
	server   *Server
	// spread is over how many connections to the server each client's
	// transactions are spread.
	spread int

	mu       sync.Mutex
	thawed   *sync.Cond
	frozen   bool
	closed   bool
	conns    map[net.Conn]struct{}
	sent     map[byte]int
	toClient func(kind byte) bool
	toServer func(kind byte) bool
	pipes    sync.WaitGroup
}

// Kinds of messages, by their first byte.
const (
	Parse         = 'P' // from the client
	Execute       = 'E'
	Sync          = 'S'
	Query         = 'Q'
	DataRow       = 'D' // from the server
	Complete      = 'C'
	ReadyForQuery = 'Z'
)

// NewProxy starts a proxy in front of a server.
func NewProxy(tb testing.TB, s *Server) *Proxy {
	tb.Helper()
	return newProxy(tb, s, 1)
}

// NewPooler starts a proxy that gives each transaction of a client another
// connection to the server, as a pooler may do, and drops what comes between
// transactions.
func NewPooler(tb testing.TB, s *Server) *Proxy {
	tb.Helper()
	return newProxy(tb, s, 3)
}

func newProxy(tb testing.TB, s *Server, spread int) *Proxy {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &Proxy{listener: l, server: s, spread: spread, conns: map[net.Conn]struct{}{}, sent: map[byte]int{}}
	p.thawed = sync.NewCond(&p.mu)
	p.pipes.Go(p.accept)
	tb.Cleanup(p.close)
	return p
}

// URL is how the superuser connects to the database postgres.
func (p *Proxy) URL() string {
	u := url.URL{Scheme: "postgres", User: url.User("postgres"), Host: p.listener.Addr().String(), Path: "/postgres", RawQuery: "sslmode=disable"}
	return u.String()
}

// Freeze stops all messages until the function it returns is called.
func (p *Proxy) Freeze() (thaw func()) {
	p.setFrozen(true)
	return func() { p.setFrozen(false) }
}

func (p *Proxy) setFrozen(frozen bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = frozen
	p.thawed.Broadcast()
}

// CutToServer cuts a connection instead of passing on a message of the client for
// which when returns true.
func (p *Proxy) CutToServer(when func(kind byte) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.toServer = when
}

// CutToClient cuts a connection instead of passing on a message of the server for
// which when returns true.
func (p *Proxy) CutToClient(when func(kind byte) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.toClient = when
}

// Sent returns how many messages of a kind clients have sent.
func (p *Proxy) Sent(kind byte) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sent[kind]
}

// CutAll cuts all connections.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

func (p *Proxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.closed = true
	p.thawed.Broadcast()
	p.mu.Unlock()
	p.CutAll()
	p.pipes.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.pipes.Go(func() {
			defer p.drop(client)
			if p.keep(client) {
				p.serve(client)
			}
		})
	}
}

func (p *Proxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[c] = struct{}{}
	return !p.closed
}

func (p *Proxy) drop(c net.Conn) {
	_ = c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

var errCut = errors.New("cut")

// pass waits while the proxy is frozen, counts, and says whether the message may
// go on.
func (p *Proxy) pass(kind byte, fromClient bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.frozen && !p.closed {
		p.thawed.Wait()
	}
	cut := p.toClient
	if fromClient {
		p.sent[kind]++
		cut = p.toServer
	}
	if p.closed || cut != nil && cut(kind) {
		return errCut
	}
	return nil
}

// message is one message; the first of a connection, and a request to cancel, has
// no kind.
type message struct {
	kind byte
	raw  []byte
}

func readMessage(r io.Reader, typed bool) (message, error) {
	var m message
	head := make([]byte, 4, 5)
	if typed {
		head = head[:5]
	}
	if _, err := io.ReadFull(r, head); err != nil {
		return m, err
	}
	if typed {
		m.kind = head[0]
	}
	size := int(binary.BigEndian.Uint32(head[len(head)-4:])) - 4
	if size < 0 || size > 1<<30 {
		return m, errors.New("size of a message")
	}
	m.raw = append(head, make([]byte, size)...)
	_, err := io.ReadFull(r, m.raw[len(head):])
	return m, err
}

// idle reports whether m says that the server is ready and in no transaction.
func idle(m message) bool { return m.kind == ReadyForQuery && m.raw[len(m.raw)-1] == 'I' }

// serve takes one client through. Each transaction goes to the next of the client's
// connections to the server.
func (p *Proxy) serve(client net.Conn) {
	start, err := readMessage(client, false)
	if err != nil || p.pass(0, true) != nil {
		return
	}
	servers := make([]net.Conn, p.spread)
	for i := range servers {
		if servers[i], err = net.Dial("unix", p.server.socket()); err != nil {
			return
		}
		defer p.drop(servers[i])
		if !p.keep(servers[i]) {
			return
		}
		if _, err := servers[i].Write(start.raw); err != nil {
			return
		}
		if i > 0 && discard(servers[i]) != nil {
			return
		}
	}
	if p.spread == 1 {
		p.pipes.Go(func() {
			defer client.Close()
			_, _ = p.copyAnswers(client, servers[0], false)
		})
		_ = p.copyRequests(servers[0], client, false)
		return
	}
	for i := 0; ; {
		last, err := p.copyAnswers(client, servers[i], true)
		if err != nil {
			return
		}
		if idle(last) {
			i = (i + 1) % p.spread
		}
		if p.copyRequests(servers[i], client, true) != nil {
			return
		}
	}
}

// discard reads up to where the server is ready.
func discard(server net.Conn) error {
	for {
		m, err := readMessage(server, true)
		if err != nil || m.kind == ReadyForQuery {
			return err
		}
	}
}

// copyAnswers passes on what the server sends, once up to where it is ready.
func (p *Proxy) copyAnswers(client, server net.Conn, once bool) (message, error) {
	for {
		m, err := readMessage(server, true)
		if err == nil {
			err = p.pass(m.kind, false)
		}
		if err == nil {
			_, err = client.Write(m.raw)
		}
		if err != nil || once && m.kind == ReadyForQuery {
			return m, err
		}
	}
}

// copyRequests passes on what the client sends, once up to where it expects the
// server to be ready again.
func (p *Proxy) copyRequests(server, client net.Conn, once bool) error {
	for {
		m, err := readMessage(client, true)
		if err == nil {
			err = p.pass(m.kind, true)
		}
		if err == nil {
			_, err = server.Write(m.raw)
		}
		if err != nil || once && (m.kind == Sync || m.kind == Query) {
			return err
		}
	}
}
