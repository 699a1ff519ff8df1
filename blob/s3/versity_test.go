package s3

import (
	"context"
	"fmt"
	"net"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"

	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/blob/blobtest"
	"github.com/holdfast-dev/holdfast/blob/s3/s3test"
	"github.com/holdfast-dev/holdfast/internal/faulthttp"
)

// versity starts a second server of other authors, with its own understanding of
// conditions, signatures and lists. It keeps objects as files, so not all names.
func versity(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, dir := range []string{"data", "meta", "iam"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	sidecar, err := meta.NewSideCar(filepath.Join(root, "meta"))
	if err != nil {
		t.Fatal(err)
	}
	be, err := posix.New(filepath.Join(root, "data"), sidecar, posix.PosixOpts{SideCarDir: filepath.Join(root, "meta"), ForceNoTmpFile: true})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		defer close(ended)
		ended <- embedgw.RunVersityGW(ctx, be, &embedgw.Config{
			RootUserAccess: s3test.AccessKeyID, RootUserSecret: s3test.SecretAccessKey, Region: "us-east-1",
			Ports: []string{addr}, IAMDir: filepath.Join(root, "iam"), Quiet: true, MaxConnections: 1000, MaxRequests: 1000, MultipartMaxParts: 10_000,
		})
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	for {
		select {
		case err := <-ended:
			t.Fatalf("versitygw: %v", err)
		default:
		}
		if c, err := net.Dial("tcp", addr); err == nil {
			_ = c.Close()
			return "http://" + addr
		}
	}
}

func TestRemoteOnAnotherServer(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes most of a minute")
	}
	target, err := url.Parse(versity(t))
	if err != nil {
		t.Fatal(err)
	}
	buckets := 0
	blobtest.RunRemote(t, func(tb testing.TB) (func() blob.Driver, *faulthttp.Server) {
		proxy := faulthttp.New(tb, &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = r.In.Host // it is signed
		}})
		opts := optionsFor(&s3test.Server{Server: proxy})
		buckets++
		opts.Bucket = fmt.Sprintf("bucket-%d", buckets)
		if err := makeBucket(tb.Context(), opts); err != nil {
			tb.Fatal(err)
		}
		return func() blob.Driver {
			d, err := Open(tb.Context(), opts)
			if err != nil {
				tb.Fatal(err)
			}
			return d
		}, proxy
	})
}

func makeBucket(ctx context.Context, opts Options) error {
	d, err := connect(ctx, opts)
	if err != nil {
		return err
	}
	_, err = d.client.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: d.bucket})
	return err
}
