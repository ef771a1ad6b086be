package org.apache.james.queue.rabbitmq;

import com.datastax.oss.driver.api.core.CqlSession;
import com.datastax.oss.driver.api.core.CqlSessionBuilder;

import org.apache.james.backends.cassandra.components.CassandraModule;
import org.apache.james.backends.cassandra.init.SessionWithInitializedTablesFactory;
import org.apache.james.backends.rabbitmq.RabbitMQConfiguration;
import org.apache.james.backends.rabbitmq.RabbitMQConfiguration.ManagementCredentials;
import org.apache.james.backends.rabbitmq.RabbitMQConnectionFactory;
import org.apache.james.backends.rabbitmq.ReactorRabbitMQChannelPool;
import org.apache.james.backends.rabbitmq.SimpleConnectionPool;
import org.apache.james.blob.api.BlobStore;
import org.apache.james.blob.api.BucketName;
import org.apache.james.blob.api.HashBlobId;
import org.apache.james.blob.mail.MimeMessageStore;
import org.apache.james.eventsourcing.eventstore.cassandra.CassandraEventStore;
import org.apache.james.eventsourcing.eventstore.cassandra.CassandraEventStoreModule;
import org.apache.james.eventsourcing.eventstore.cassandra.EventStoreDao;
import org.apache.james.eventsourcing.eventstore.cassandra.JsonEventSerializer;
import org.apache.james.metrics.api.MetricFactory;
import org.apache.james.metrics.api.NoopGaugeRegistry;
import org.apache.james.queue.api.MailQueueFactory;
import org.apache.james.queue.api.RawMailQueueItemDecoratorFactory;
import org.apache.james.queue.rabbitmq.view.RabbitMQMailQueueConfiguration;
import org.apache.james.queue.rabbitmq.view.cassandra.CassandraMailQueueViewModule;
import org.apache.james.queue.rabbitmq.view.cassandra.CassandraMailQueueViewTestFactory;
import org.apache.james.queue.rabbitmq.view.cassandra.configuration.CassandraMailQueueViewConfiguration;
import org.apache.james.queue.rabbitmq.view.cassandra.configuration.CassandraMailQueueViewConfigurationModule;
import org.apache.james.queue.rabbitmq.view.cassandra.configuration.EventsourcingConfigurationManagement;
import org.apache.james.server.blob.deduplication.DeDuplicationBlobStore;
import org.apache.james.server.blob.deduplication.PassThroughBlobStore;

import reactor.core.publisher.Flux;
import reactor.core.publisher.Mono;
import reactor.rabbitmq.ExchangeSpecification;
import reactor.rabbitmq.QueueSpecification;

import java.net.InetSocketAddress;
import java.net.URI;
import java.time.Clock;
import java.time.Duration;
import java.util.Map;
import java.util.stream.Stream;

/**
 * James' parts put together on the servers that the environment names (POSTROAD_*).
 *
 * <p>What a James server takes by default is taken here: publisher confirms, three channels for
 * publishing, the view, no metric of the size. What we chose: the view has three buckets and slices
 * of an hour, as the queue has that it stands beside; its queues are quorum queues, as that one's
 * are; who publishes waits up to 30 s for a channel, since a busy machine must not make mails fail.
 * Blobs are passed through, two objects a mail that are deleted with it: with James' other strategy,
 * deduplication, he deletes nothing and leaves that to a job of its own.
 */
final class Wiring implements AutoCloseable {
    private static final int BUCKETS = 3;
    private static final int BROWSE_START_PACE = 1000;
    private static final Duration SLICE = Duration.ofHours(1);
    private static final int CHANNELS = 3;
    private static final int CHANNEL_RETRIES = 3;
    private static final Duration WAIT_FOR_CHANNEL = Duration.ofSeconds(30);

    private final CqlSession session;
    private final CassandraMailQueueViewConfiguration configuration;
    private final ObjectStore store;
    private final SimpleConnectionPool connections;
    private final ReactorRabbitMQChannelPool channels;
    private final RabbitMQMailQueueFactory queues;

    Wiring(Map<String, String> environment) {
        MetricFactory metrics = new NoMetrics();
        RabbitMQConfiguration broker = broker(environment);
        connections =
                new SimpleConnectionPool(
                        new RabbitMQConnectionFactory(broker),
                        SimpleConnectionPool.Configuration.DEFAULT);
        channels =
                new ReactorRabbitMQChannelPool(
                        connections.getResilientConnection(),
                        ReactorRabbitMQChannelPool.Configuration.builder()
                                .retries(CHANNEL_RETRIES)
                                .maxBorrowDelay(WAIT_FOR_CHANNEL)
                                .maxChannel(CHANNELS),
                        metrics);
        channels.start();
        session = session(environment);
        store =
                new ObjectStore(
                        URI.create(environment.get("POSTROAD_S3_ENDPOINT")),
                        environment.get("POSTROAD_S3_REGION"),
                        environment.get("POSTROAD_S3_ACCESS_KEY"),
                        environment.get("POSTROAD_S3_SECRET_KEY"));
        HashBlobId.Factory blobIds = new HashBlobId.Factory();
        MimeMessageStore.Factory messages =
                MimeMessageStore.factory(blobStore(environment, blobIds));
        CassandraMailQueueViewConfiguration view =
                CassandraMailQueueViewConfiguration.builder()
                        .bucketCount(
                                environment.containsKey("JAMES_BUCKETS")
                                        ? Integer.parseInt(environment.get("JAMES_BUCKETS"))
                                        : BUCKETS)
                        .updateBrowseStartPace(BROWSE_START_PACE)
                        .sliceWindow(
                                environment.containsKey("JAMES_SLICE")
                                        ? Duration.parse(environment.get("JAMES_SLICE"))
                                        : SLICE)
                        .build();
        configuration = view;
        Clock clock = Clock.systemUTC();
        RabbitMQMailQueueFactory.PrivateFactory parts =
                new RabbitMQMailQueueFactory.PrivateFactory(
                        metrics,
                        new NoopGaugeRegistry(),
                        channels.getSender(),
                        channels::createReceiver,
                        messages,
                        blobIds,
                        CassandraMailQueueViewTestFactory.factory(clock, session, view, messages),
                        clock,
                        new RawMailQueueItemDecoratorFactory(),
                        RabbitMQMailQueueConfiguration.builder()
                                .sizeMetricsEnabled(false)
                                .mailQueuePublishConfirmEnabled(true)
                                .build());
        queues =
                new RabbitMQMailQueueFactory(
                        channels.getSender(),
                        new RabbitMQMailQueueManagement(broker),
                        parts,
                        broker);
    }

    private BlobStore blobStore(Map<String, String> environment, HashBlobId.Factory blobIds) {
        BucketName bucket = BucketName.of(environment.get("POSTROAD_S3_BUCKET"));
        return environment.containsKey("JAMES_DEDUPLICATION")
                ? new DeDuplicationBlobStore(store, bucket, blobIds)
                : new PassThroughBlobStore(store, bucket, blobIds);
    }

    /** Records the configuration of the view, as James does when he starts. */
    void register() {
        new EventsourcingConfigurationManagement(
                        new CassandraEventStore(
                                new EventStoreDao(
                                        session,
                                        JsonEventSerializer.forModules(
                                                        CassandraMailQueueViewConfigurationModule
                                                                .MAIL_QUEUE_VIEW_CONFIGURATION)
                                                .withoutNestedType())))
                .registerConfiguration(configuration);
    }

    /** Opens a queue, which is made if there is none; so many mails are handed out undone. */
    RabbitMQMailQueue open(String name, int prefetch) {
        return queues.createQueue(
                org.apache.james.queue.api.MailQueueName.of(name),
                MailQueueFactory.prefetchCount(prefetch));
    }

    /** Removes what the broker has of a queue. */
    void drop(String name) {
        MailQueueName queue = MailQueueName.fromString(name);
        Stream<Mono<?>> queuesOfIt =
                Stream.of(queue.toWorkQueueName().asString(), queue.toDeadLetterQueueName())
                        .map(each -> channels.getSender().delete(QueueSpecification.queue(each)));
        Stream<Mono<?>> exchangesOfIt =
                Stream.of(queue.toRabbitExchangeName().asString(), queue.toDeadLetterExchangeName())
                        .map(
                                each ->
                                        channels.getSender()
                                                .delete(ExchangeSpecification.exchange(each)));
        Flux.concat(Stream.concat(queuesOfIt, exchangesOfIt).toList()).blockLast();
    }

    private static RabbitMQConfiguration broker(Map<String, String> environment) {
        // James takes a path for a virtual host of its own; the default one goes without saying.
        String uri = environment.get("POSTROAD_RABBITMQ_URI").replaceFirst("/%2[Ff]$", "");
        URI management = URI.create(environment.get("POSTROAD_RABBITMQ_MANAGEMENT_URL"));
        String[] login = management.getUserInfo().split(":", 2);
        return RabbitMQConfiguration.builder()
                .amqpUri(URI.create(uri))
                .managementUri(
                        URI.create(management.getScheme() + "://" + management.getHost() + ":"
                                + management.getPort()))
                .managementCredentials(
                        new ManagementCredentials(login[0], login[1].toCharArray()))
                .useQuorumQueues(true)
                .build();
    }

    /** James' own factory asks, to see whether it answers, for a function that Cassandra 5 lacks. */
    private static CqlSession session(Map<String, String> environment) {
        int port = Integer.parseInt(environment.get("POSTROAD_CASSANDRA_PORT"));
        CqlSessionBuilder builder =
                CqlSession.builder()
                        .withLocalDatacenter(
                                environment.get("POSTROAD_CASSANDRA_LOCAL_DATACENTER"))
                        .withAuthCredentials(
                                environment.get("POSTROAD_CASSANDRA_USERNAME"),
                                environment.get("POSTROAD_CASSANDRA_PASSWORD"))
                        .withKeyspace(environment.get("POSTROAD_CASSANDRA_KEYSPACE"));
        for (String host : environment.get("POSTROAD_CASSANDRA_CONTACT_POINTS").split(",")) {
            builder.addContactPoint(new InetSocketAddress(host, port));
        }
        return new SessionWithInitializedTablesFactory(
                        builder.build(),
                        CassandraModule.aggregateModules(
                                CassandraMailQueueViewModule.MODULE,
                                CassandraEventStoreModule.MODULE()))
                .get();
    }

    @Override
    public void close() {
        channels.close();
        connections.close();
        session.close();
        store.close();
    }
}
