package org.apache.james.queue.rabbitmq;

import com.google.common.io.ByteSource;

import org.apache.james.blob.api.BlobId;
import org.apache.james.blob.api.BlobStoreDAO;
import org.apache.james.blob.api.BucketName;
import org.apache.james.blob.api.ObjectNotFoundException;
import org.reactivestreams.Publisher;

import reactor.core.publisher.Flux;
import reactor.core.publisher.Mono;
import reactor.core.scheduler.Schedulers;

import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.awssdk.core.BytesWrapper;
import software.amazon.awssdk.core.async.AsyncRequestBody;
import software.amazon.awssdk.core.async.AsyncResponseTransformer;
import software.amazon.awssdk.core.interceptor.Context;
import software.amazon.awssdk.core.interceptor.ExecutionAttributes;
import software.amazon.awssdk.core.interceptor.ExecutionInterceptor;
import software.amazon.awssdk.http.SdkHttpRequest;
import software.amazon.awssdk.http.nio.netty.NettyNioAsyncHttpClient;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.s3.S3AsyncClient;
import software.amazon.awssdk.services.s3.S3Configuration;
import software.amazon.awssdk.services.s3.model.NoSuchKeyException;

import java.io.ByteArrayInputStream;
import java.io.InputStream;
import java.net.URI;
import java.util.Collection;

/**
 * One bucket of an S3 store.
 *
 * <p>James' own class for S3 is in no artifact that can be had, so this stands in for it: the same
 * client (AWS SDK 2 over Netty, 100 connections), and like there what follows an answer runs on
 * Reactor's parallel threads. Where there is a cheaper way for mails of some kB, it is taken: objects
 * are kept in memory instead of streamed, and a put is sent as one piece, at once and without asking
 * whether it may be (Expect: 100-continue).
 */
final class ObjectStore implements BlobStoreDAO, AutoCloseable {
    private static final int CONNECTIONS = 100;
    private static final int WAITING = 10_000;

    private static final class Unasked implements ExecutionInterceptor {
        @Override
        public SdkHttpRequest modifyHttpRequest(
                Context.ModifyHttpRequest context, ExecutionAttributes attributes) {
            return context.httpRequest().toBuilder().removeHeader("Expect").build();
        }
    }

    private final S3AsyncClient client;

    ObjectStore(URI endpoint, String region, String accessKey, String secretKey) {
        client =
                S3AsyncClient.builder()
                        .endpointOverride(endpoint)
                        .region(Region.of(region))
                        .serviceConfiguration(
                                S3Configuration.builder()
                                        .pathStyleAccessEnabled(true)
                                        .chunkedEncodingEnabled(false)
                                        .build())
                        .overrideConfiguration(
                                settings -> settings.addExecutionInterceptor(new Unasked()))
                        .credentialsProvider(
                                StaticCredentialsProvider.create(
                                        AwsBasicCredentials.create(accessKey, secretKey)))
                        .httpClientBuilder(
                                NettyNioAsyncHttpClient.builder()
                                        .maxConcurrency(CONNECTIONS)
                                        .maxPendingConnectionAcquires(WAITING))
                        .build();
    }

    @Override
    public Mono<byte[]> readBytes(BucketName bucket, BlobId id) {
        return Mono.fromFuture(
                        () ->
                                client.getObject(
                                        get -> get.bucket(bucket.asString()).key(id.asString()),
                                        AsyncResponseTransformer.toBytes()))
                .publishOn(Schedulers.parallel())
                .map(BytesWrapper::asByteArrayUnsafe)
                .onErrorMap(
                        NoSuchKeyException.class,
                        error -> new ObjectNotFoundException(id.asString(), error));
    }

    @Override
    public Mono<InputStream> readReactive(BucketName bucket, BlobId id) {
        return readBytes(bucket, id).map(ByteArrayInputStream::new);
    }

    @Override
    public InputStream read(BucketName bucket, BlobId id) {
        return readReactive(bucket, id).block();
    }

    @Override
    public Mono<Void> save(BucketName bucket, BlobId id, byte[] content) {
        return Mono.fromFuture(
                        () ->
                                client.putObject(
                                        put -> put.bucket(bucket.asString()).key(id.asString()),
                                        AsyncRequestBody.fromBytesUnsafe(content)))
                .publishOn(Schedulers.parallel())
                .then();
    }

    @Override
    public Mono<Void> save(BucketName bucket, BlobId id, InputStream content) {
        return Mono.fromCallable(content::readAllBytes).flatMap(all -> save(bucket, id, all));
    }

    @Override
    public Mono<Void> save(BucketName bucket, BlobId id, ByteSource content) {
        return Mono.fromCallable(content::read).flatMap(all -> save(bucket, id, all));
    }

    @Override
    public Mono<Void> delete(BucketName bucket, BlobId id) {
        return Mono.fromFuture(
                        () ->
                                client.deleteObject(
                                        one -> one.bucket(bucket.asString()).key(id.asString())))
                .publishOn(Schedulers.parallel())
                .then();
    }

    @Override
    public Publisher<Void> delete(BucketName bucket, Collection<BlobId> ids) {
        return Flux.fromIterable(ids).flatMap(id -> delete(bucket, id)).then();
    }

    @Override
    public Publisher<Void> deleteBucket(BucketName bucket) {
        throw new UnsupportedOperationException("the queue never asks for it");
    }

    @Override
    public Publisher<BucketName> listBuckets() {
        throw new UnsupportedOperationException("the queue never asks for it");
    }

    @Override
    public Publisher<BlobId> listBlobs(BucketName bucket) {
        throw new UnsupportedOperationException("the queue never asks for it");
    }

    @Override
    public void close() {
        client.close();
    }
}
