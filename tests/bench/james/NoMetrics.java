package org.apache.james.queue.rabbitmq;

import org.apache.james.metrics.api.Metric;
import org.apache.james.metrics.api.MetricFactory;
import org.apache.james.metrics.api.TimeMetric;
import org.reactivestreams.Publisher;

import java.time.Duration;

/** Metrics that cost nothing: who keeps them, and at what price, is not the queue's matter. */
final class NoMetrics implements MetricFactory {
    @Override
    public Metric generate(String name) {
        return new Nothing();
    }

    @Override
    public TimeMetric timer(String name) {
        return new NoTime(name);
    }

    @Override
    public <T> Publisher<T> decoratePublisherWithTimerMetric(String name, Publisher<T> publisher) {
        return publisher;
    }

    @Override
    public <T> Publisher<T> decoratePublisherWithTimerMetricLogP99(
            String name, Publisher<T> publisher) {
        return publisher;
    }

    private static final class Nothing implements Metric {
        @Override
        public void increment() {}

        @Override
        public void decrement() {}

        @Override
        public void add(int value) {}

        @Override
        public void remove(int value) {}

        @Override
        public long getCount() {
            return 0;
        }
    }

    private record NoTime(String name) implements TimeMetric {
        @Override
        public ExecutionResult stopAndPublish() {
            return new ExecutionResult() {
                @Override
                public Duration elasped() {
                    return Duration.ZERO;
                }

                @Override
                public ExecutionResult logWhenExceedP99(Duration threshold) {
                    return this;
                }
            };
        }
    }
}
