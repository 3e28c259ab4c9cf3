package awssink

import (
	"context"
	"net/http"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// sqsClient is the client of AWS.
type sqsClient struct {
	account string // the address of a queue without its name
	sqs     *sqs.Client
}

func newSQS(target *Target, at *address, h *http.Client, name string) *sqsClient {
	return &sqsClient{at.base + "/" + at.account, sqs.New(sqs.Options{
		Region: target.Region, BaseEndpoint: aws.String(at.base), Credentials: target.Credentials, AppID: name, HTTPClient: h,
		Retryer: aws.NopRetryer{}, // lanes send again
	})}
}

func (c *sqsClient) publish(ctx context.Context, name string, batch []*message) (*outcome, error) {
	in := &sqs.SendMessageBatchInput{QueueUrl: aws.String(c.account + "/" + name)}
	for i, m := range batch {
		in.Entries = append(in.Entries, m.forSQS(strconv.Itoa(i)))
	}
	out, err := c.sqs.SendMessageBatch(ctx, in)
	if err != nil {
		return nil, err
	}
	var o outcome
	for i := range out.Successful {
		o.stored = append(o.stored, storedEntry{aws.ToString(out.Successful[i].Id), aws.ToString(out.Successful[i].MessageId)})
	}
	for i := range out.Failed {
		f := &out.Failed[i]
		o.failed = append(o.failed, failedEntry{aws.ToString(f.Id), aws.ToString(f.Code), aws.ToString(f.Message), f.SenderFault})
	}
	return &o, nil
}

func (c *sqsClient) attributes(ctx context.Context, name string) (map[string]string, error) {
	out, err := c.sqs.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
		QueueUrl: aws.String(c.account + "/" + name), AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll},
	})
	if err != nil {
		return nil, err
	}
	return out.Attributes, nil
}

// forSQS returns the message as an entry of a request.
func (m *message) forSQS(id string) types.SendMessageBatchRequestEntry {
	attributes := make(map[string]types.MessageAttributeValue, len(m.attributes))
	for _, a := range m.attributes {
		if a.bytes == nil {
			attributes[a.name] = types.MessageAttributeValue{DataType: aws.String("String"), StringValue: aws.String(a.text)}
		} else {
			attributes[a.name] = types.MessageAttributeValue{DataType: aws.String("Binary"), BinaryValue: a.bytes}
		}
	}
	return types.SendMessageBatchRequestEntry{
		Id: aws.String(id), MessageBody: aws.String(m.body), MessageGroupId: aws.String(m.group), MessageDeduplicationId: aws.String(m.once),
		MessageAttributes: attributes,
	}
}
