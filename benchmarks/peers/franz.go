// franz measures franz-go as measure.py measures the others: a job as JSON in argv, a result on stdout.
//
// CPU is the user and system time of this process over the measured part, after a warm-up.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type job struct {
	Kind        string   `json:"kind"`
	ValueSize   int      `json:"value_size"`
	Records     int      `json:"records"`
	WarmUp      int      `json:"warm_up"`
	Tasks       int      `json:"tasks"`
	LingerMs    *float64 `json:"linger_ms"`
	BatchSize   *int32   `json:"batch_size"`
	Compression string   `json:"compression"`
	Partitions  int      `json:"partitions"`
	RoundRobin  bool     `json:"round_robin"`
	Bootstrap   string   `json:"bootstrap"`
	Topic       string   `json:"topic"`
	ValuesFile  string   `json:"values_file"`
	Window      int      `json:"window"`
	Processors  int      `json:"processors"`
	Level       *int     `json:"level"`
	Authority   string   `json:"authority"`
}

type result map[string]float64

func main() {
	var j job
	check(json.Unmarshal([]byte(os.Args[1]), &j))
	text, err := os.ReadFile(j.ValuesFile)
	check(err)
	var values [][]byte
	for at := 0; at < len(text); at += j.ValueSize {
		values = append(values, text[at:at+j.ValueSize])
	}
	if j.Processors > 0 {
		runtime.GOMAXPROCS(j.Processors)
	}
	client := open(&j)
	var found result
	switch j.Kind {
	case "pipelined", "window":
		found = pipelined(&j, client, values)
	case "closed_loop":
		found = closedLoop(&j, client, values)
	case "memory":
		found = memory(&j, client, values)
	default:
		check(fmt.Errorf("franz-go can't measure %q", j.Kind))
	}
	told, err := json.Marshal(found)
	check(err)
	fmt.Println(string(told))
	if j.Kind == "memory" {
		os.Exit(0) // closing would wait for a broker that never answers
	}
	client.Close()
}

func open(j *job) *kgo.Client {
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	codec := codecs[j.Compression]
	if j.Level != nil {
		codec = codec.WithLevel(*j.Level)
	}
	buffered := max(j.Window, 100_000)
	switch j.Kind {
	case "memory":
		buffered = 10_000_000
	case "window":
		buffered = j.Window // Produce waits while so many are unacknowledged
	}
	options := []kgo.Opt{ // idempotent, acks from all: its defaults
		kgo.SeedBrokers(strings.Split(j.Bootstrap, ",")...),
		kgo.DefaultProduceTopic(j.Topic),
		kgo.ProducerBatchCompression(codec),
		kgo.MaxBufferedRecords(buffered),
	}
	if j.Authority != "" {
		certificate, err := os.ReadFile(j.Authority)
		check(err)
		trusted := x509.NewCertPool()
		trusted.AppendCertsFromPEM(certificate)
		options = append(options, kgo.DialTLSConfig(&tls.Config{RootCAs: trusted}))
	}
	if j.BatchSize != nil {
		options = append(options, kgo.ProducerBatchMaxBytes(*j.BatchSize))
	}
	if j.LingerMs != nil {
		options = append(options, kgo.ProducerLinger(time.Duration(*j.LingerMs*float64(time.Millisecond))))
	}
	if j.RoundRobin {
		options = append(options, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	}
	client, err := kgo.NewClient(options...)
	check(err)
	return client
}

func pipelined(j *job, client *kgo.Client, values [][]byte) result {
	var delivered atomic.Int64
	onDelivery := func(_ *kgo.Record, err error) {
		check(err)
		delivered.Add(1)
	}
	push := func(count int) {
		for i := range count {
			record := &kgo.Record{Value: values[i%len(values)]}
			if j.RoundRobin {
				record.Partition = int32(i % j.Partitions)
			}
			client.Produce(context.Background(), record, onDelivery)
		}
		check(client.Flush(context.Background()))
	}
	push(j.WarmUp)
	cpu, wall := cpuSeconds(), time.Now()
	push(j.Records)
	found := perRecord(j.Records, cpuSeconds()-cpu, time.Since(wall).Seconds())
	if int(delivered.Load()) != j.WarmUp+j.Records {
		check(fmt.Errorf("%d deliveries of %d records", delivered.Load(), j.WarmUp+j.Records))
	}
	found["sent"] = float64(j.WarmUp + j.Records)
	return found
}

// Each goroutine waits for its record before it sends the next.
func closedLoop(j *job, client *kgo.Client, values [][]byte) result {
	latencies := make([][]time.Duration, j.Tasks)
	all := func(count int) {
		var group sync.WaitGroup
		for task := range j.Tasks {
			latencies[task] = make([]time.Duration, 0, count/j.Tasks)
			group.Go(func() {
				for i := range count / j.Tasks {
					began := time.Now()
					record := &kgo.Record{Value: values[(task+i)%len(values)]}
					check(client.ProduceSync(context.Background(), record).FirstErr())
					latencies[task] = append(latencies[task], time.Since(began))
				}
			})
		}
		group.Wait()
	}
	all(j.WarmUp)
	cpu, wall := cpuSeconds(), time.Now()
	all(j.Records)
	used, took := cpuSeconds()-cpu, time.Since(wall).Seconds()
	ordered := slices.Concat(latencies...)
	slices.Sort(ordered)
	quantile := func(q float64) float64 {
		return ordered[min(len(ordered)-1, int(float64(len(ordered))*q))].Seconds() * 1e3
	}
	found := perRecord(len(ordered), used, took)
	found["p50_ms"], found["p99_ms"] = quantile(0.5), quantile(0.99)
	found["sent"] = float64(j.WarmUp/j.Tasks*j.Tasks + len(ordered))
	return found
}

// The broker never answers, so every record waits.
func memory(j *job, client *kgo.Client, values [][]byte) result {
	push := func(count int) {
		for i := range count {
			value := append(fmt.Appendf(nil, "%08d", i), values[i%len(values)][8:]...)
			client.Produce(context.Background(), &kgo.Record{Value: value}, func(_ *kgo.Record, _ error) {})
		}
		time.Sleep(200 * time.Millisecond) // the requests that fit into the window go out and stay unanswered
	}
	push(j.WarmUp)
	before := residentBytes()
	push(j.Records)
	grown := residentBytes() - before
	return result{"bytes_per_record": float64(grown) / float64(j.Records), "waiting": float64(client.BufferedProduceRecords())}
}

func perRecord(records int, cpu, wall float64) result {
	return result{"cpu_us": cpu / float64(records) * 1e6, "records_per_s": float64(records) / wall}
}

func cpuSeconds() float64 {
	var used syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()).Seconds()
}

func residentBytes() int {
	debug.FreeOSMemory()
	text, err := os.ReadFile("/proc/self/statm")
	check(err)
	pages, err := strconv.Atoi(strings.Fields(string(text))[1])
	check(err)
	return pages * os.Getpagesize()
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
