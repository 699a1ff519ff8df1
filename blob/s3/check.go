package s3

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/holdfast-dev/holdfast/blob"
)

// LifecyclePolicy returns the rule that a bucket may have, as JSON for
// "aws s3api put-bucket-lifecycle-configuration --bucket NAME
// --lifecycle-configuration file://FILE". That command replaces all rules of the
// bucket. It cleans up after multipart uploads of other programs: Holdfast makes none,
// and its own worker removes what was never finalized.
func LifecyclePolicy() string {
	return `{
  "Rules": [
    {
      "ID": "abort-multipart-uploads",
      "Status": "Enabled",
      "Filter": {"Prefix": ""},
      "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7}
    }
  ]
}
`
}

// Check implements blob.Checker. It reads the bucket's rules and versioning, and tries
// whether the store honours conditions.
func (d *Driver) Check(ctx context.Context) ([]blob.Finding, error) {
	if err := d.present(ctx); err != nil {
		return nil, fmt.Errorf("s3: check bucket %s: %w", *d.bucket, err)
	}
	if err := d.probe(ctx); err != nil {
		return nil, fmt.Errorf("s3: check bucket %s: %w", *d.bucket, err)
	}
	findings := []blob.Finding{{Level: blob.OK, Setting: "conditions", Text: "the store honours conditions on writes"}}
	honoured, err := d.probeDelete(ctx)
	if err != nil {
		return nil, fmt.Errorf("s3: check bucket %s: %w", *d.bucket, err)
	}
	if !honoured {
		findings = append(findings, blob.Finding{Level: blob.Note, Setting: "conditions",
			Text: "the store ignores conditions on deletions: do not use the name of a deleted object again at once"})
	}
	return append(append(findings, d.checkRules(ctx)...), d.checkVersioning(ctx)...), nil
}

// probeDelete reports whether the store honours If-Match on DELETE.
func (d *Driver) probeDelete(ctx context.Context) (bool, error) {
	_, err := d.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: d.bucket, Key: aws.String(probeKey), IfMatch: aws.String(noETag)})
	switch {
	case refused(err):
		return true, nil
	case err != nil && statusOf(err) != http.StatusNotImplemented:
		return false, fmt.Errorf("try a conditional deletion: %w", err)
	}
	return false, d.probe(ctx) // which puts back what was deleted
}

func (d *Driver) checkRules(ctx context.Context) []blob.Finding {
	out, err := d.client.GetBucketLifecycleConfiguration(ctx, &s3.GetBucketLifecycleConfigurationInput{Bucket: d.bucket})
	if err != nil && codeOf(err) != "NoSuchLifecycleConfiguration" {
		return []blob.Finding{unreadable("lifecycle", err)}
	}
	var findings []blob.Finding
	if err == nil {
		for _, rule := range out.Rules {
			if e := rule.Expiration; rule.Status == types.ExpirationStatusEnabled && e != nil && (aws.ToInt32(e.Days) > 0 || e.Date != nil) {
				findings = append(findings, blob.Finding{Level: blob.Problem, Setting: "lifecycle", Text: fmt.Sprintf(
					"rule %q deletes objects by their age, finalized ones too: remove it", aws.ToString(rule.ID))})
			}
		}
	}
	if len(findings) == 0 {
		findings = append(findings, blob.Finding{Level: blob.OK, Setting: "lifecycle",
			Text: "no rule deletes objects; Holdfast itself removes what is never finalized"})
	}
	return findings
}

func (d *Driver) checkVersioning(ctx context.Context) []blob.Finding {
	out, err := d.client.GetBucketVersioning(ctx, &s3.GetBucketVersioningInput{Bucket: d.bucket})
	switch {
	case err != nil:
		return []blob.Finding{unreadable("versioning", err)}
	case out.Status == types.BucketVersioningStatusEnabled:
		return []blob.Finding{{Level: blob.Note, Setting: "versioning",
			Text: "deleted objects stay as old versions: they cost until a rule for old versions deletes them"}}
	}
	return nil
}

func unreadable(setting string, err error) blob.Finding {
	why := strings.TrimSpace(codeOf(err))
	if why == "" {
		why = "no answer"
	}
	return blob.Finding{Level: blob.Note, Setting: setting, Text: fmt.Sprintf("it cannot be read (%s)", why)}
}
